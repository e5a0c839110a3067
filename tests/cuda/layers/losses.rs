use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn;

use crate::check::{agrees_on, numbers};
use crate::gpu::{gpu, simulated};

#[test]
fn cross_entropy() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for (rows, classes) in [(3, 5), (2, 33), (5, 300), (3, 1030)] {
        let targets = (0..rows).map(|row| (row * 7 + 3) as u32 % classes as u32);
        let targets = Tensor::from_iter(targets, &Device::Cpu)?;
        for dtype in [DType::U32, DType::I64] {
            let targets = targets.to_dtype(dtype)?;
            let loss =
                |x: &[Tensor]| nn::loss::cross_entropy(&x[0], &targets.to_device(x[0].device())?);
            let logits = numbers(&[rows, classes], 1);
            agrees_on(&device, &loss, &[(&logits + 1e4)?])?;
            agrees_on(&device, &loss, &[logits])?;
        }
    }
    Ok(())
}

/// On the CPU a target out of range is an error; here nothing waits for the device, and nothing out of bounds is read.
#[test]
fn targets_out_of_range_give_nan() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let logits = numbers(&[4, 5], 1)
        .to_dtype(DType::F32)?
        .to_device(&device)?;
    let loss = |targets: &[u32]| -> Result<(f32, Vec<Vec<f32>>)> {
        let logits = Var::from_tensor(&logits)?;
        let loss = nn::loss::cross_entropy(&logits, &Tensor::new(targets, &device)?)?;
        let mut store = loss.backward()?;
        let gradient = store.remove(&logits).expect("a gradient");
        Ok((loss.to_scalar()?, gradient.to_vec2()?))
    };
    let (value, gradient) = loss(&[0, 5, 1, 4_000_000_000])?;
    assert!(value.is_nan());
    let is_nan = |row: &[f32]| row.iter().all(|x| x.is_nan());
    let is_finite = |row: &[f32]| row.iter().all(|x| x.is_finite());
    assert!(is_finite(&gradient[0]) && is_nan(&gradient[1]));
    assert!(is_finite(&gradient[2]) && is_nan(&gradient[3]));
    // The largest number is no target.
    let (value, gradient) = loss(&[0, u32::MAX, 1, 2])?;
    assert!(value.is_finite());
    assert_eq!(gradient[1], [0.; 5]);
    Ok(())
}

#[test]
fn softmax_over_any_dimension() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for shape in [&[3, 5][..], &[2, 3, 33], &[3, 300], &[1, 1030]] {
        let inputs = [numbers(shape, 1)];
        for dim in [0, shape.len() - 1] {
            agrees_on(&device, &|x| nn::ops::softmax(&x[0], dim), &inputs)?;
            if shape[dim] > 1 {
                agrees_on(&device, &|x| nn::ops::log_softmax(&x[0], dim), &inputs)?;
            }
        }
    }
    Ok(())
}

/// Neither the check of targets nor seeds wait for the device.
#[test]
fn losses_and_dropout_never_wait() -> Result<()> {
    let Some((gpu, simulator)) = simulated(0) else {
        return Ok(());
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let logits = Var::from_tensor(&numbers(&[4, 40], 1).to_device(&device)?)?;
    let targets = Tensor::new(&[0u32, 1, 2, 3], &device)?;
    let step = || -> Result<()> {
        let logits = nn::ops::dropout(&logits, 0.5)?;
        let logits = nn::ops::log_softmax(&logits, 0)?;
        nn::loss::cross_entropy(&logits, &targets)?.backward()?;
        Ok(())
    };
    // Loads the kernels.
    step()?;
    simulator.reset_counters();
    step()?;
    assert_eq!(simulator.counters().synchronizations, 0);
    assert!(simulator.counters().launches >= 6);
    Ok(())
}
