use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::loss::{
    LinearCrossEntropy, linear_cross_entropy, linear_cross_entropy_sum,
};
use candle_headroom::{DeviceMemory, ErrorExt};

use crate::check::{agrees_on, numbers};
use crate::gpu::{gpu, simulated};

/// Everything that can interact.
fn options(tokens: usize, device: &Device) -> Result<LinearCrossEntropy> {
    let weights = (0..tokens).map(|token| (token % 5) as f32 / 4.);
    let weights = Tensor::from_iter(weights, &Device::Cpu)?.to_device(device)?;
    Ok(LinearCrossEntropy::default()
        .label_smoothing(0.1)
        .z_loss(0.01)
        .softcap(1.5)
        .ignore_index(2)
        .token_weights(&weights))
}

fn targets(tokens: usize, classes: usize) -> Result<Tensor> {
    let targets = (0..tokens).map(|token| ((token * 7 + 3) % classes) as i64);
    Tensor::from_iter(targets, &Device::Cpu)
}

/// In all types and layouts; rows shorter than a warp, longer than a block and not multiples of either.
#[test]
fn agrees_with_the_cpu() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for (tokens, width, classes, chunk) in [(5, 3, 7, 5), (3, 4, 33, 2), (4, 2, 1030, 3)] {
        let inputs = [
            numbers(&[tokens, width], 1),
            numbers(&[classes, width], 2),
            numbers(&[classes], 3),
        ];
        let targets = targets(tokens, classes)?;
        agrees_on(
            &device,
            &|x| {
                let targets = targets.to_device(x[0].device())?;
                let options = LinearCrossEntropy::default().chunk_rows(chunk);
                linear_cross_entropy(&x[0], &x[1], &targets, &options)
            },
            &inputs[..2],
        )?;
        for on_the_device in [false, true] {
            agrees_on(
                &device,
                &|x| {
                    let with = match on_the_device {
                        true => x[0].device().clone(),
                        false => Device::Cpu,
                    };
                    let options = options(tokens, &with)?.bias(&x[2]).chunk_rows(chunk);
                    linear_cross_entropy(&x[0], &x[1], &targets.to_device(&with)?, &options)
                },
                &inputs,
            )?;
        }
    }
    Ok(())
}

/// On the CPU these are errors; here nothing waits for the device.
#[test]
fn what_is_out_of_range_gives_nan() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let there = |tensor: Tensor| tensor.to_dtype(DType::F32)?.to_device(&device);
    let weight = there(numbers(&[5, 3], 2))?;
    let run = |targets: &Tensor, options: &LinearCrossEntropy| -> Result<(f32, Vec<Vec<f32>>)> {
        let hidden = Var::from_tensor(&there(numbers(&[4, 3], 1))?)?;
        let loss = linear_cross_entropy(&hidden, &weight, targets, options)?;
        let mut store = loss.backward()?;
        let gradient = store.remove(&hidden).expect("a gradient");
        Ok((loss.to_scalar()?, gradient.to_vec2()?))
    };
    let is_nan = |row: &Vec<f32>| row.iter().all(|x| x.is_nan());
    let targets = Tensor::new(&[0i64, 5, -7, 1], &device)?;
    let (loss, gradient) = run(&targets, &LinearCrossEntropy::default())?;
    let wrong: Vec<bool> = gradient.iter().map(is_nan).collect();
    assert!(loss.is_nan());
    assert_eq!(wrong, [false, true, true, false]);

    let targets = Tensor::new(&[0i64, 4, 3, 1], &device)?;
    let weights = Tensor::new(&[1f32, 0., 1., -0.5], &device)?;
    let options = LinearCrossEntropy::default().token_weights(&weights);
    let (loss, gradient) = run(&targets, &options)?;
    let wrong: Vec<bool> = gradient.iter().map(is_nan).collect();
    assert!(loss.is_nan());
    assert_eq!(wrong, [false, false, false, true]);
    assert_eq!(gradient[1], [0.; 3]);
    Ok(())
}

#[test]
fn nothing_that_counts_gives_zeros() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let hidden = Var::from_tensor(&numbers(&[4, 3], 1).to_device(&device)?)?;
    let weight = numbers(&[5, 3], 2).to_device(&device)?;
    let targets = Tensor::full(-100i64, 4, &device)?;
    let options = LinearCrossEntropy::default().ignore_index(-100);
    let loss = linear_cross_entropy(&hidden, &weight, &targets, &options)?;
    let gradient = loss.backward()?.remove(&hidden).expect("a gradient");
    assert_eq!(loss.to_scalar::<f64>()?, 0.);
    assert_eq!(gradient.abs()?.sum_all()?.to_scalar::<f64>()?, 0.);
    let sum = linear_cross_entropy_sum(&hidden, &weight, &targets, &options)?;
    assert_eq!(sum.weight, 0.);
    // A view without elements, as of a batch without samples.
    let (nothing, targets) = (hidden.narrow(0, 0, 0)?, targets.narrow(0, 0, 0)?);
    let loss = linear_cross_entropy(&nothing, &weight, &targets, &options)?;
    assert_eq!(loss.to_scalar::<f64>()?, 0.);
    let store = loss.backward()?;
    let gradient = store.get(&hidden).expect("a gradient");
    assert_eq!(gradient.abs()?.sum_all()?.to_scalar::<f64>()?, 0.);
    Ok(())
}

/// Neither the mean, nor the scale of the gradient, nor the sum's weight where targets are on the CPU.
#[test]
fn nothing_waits_for_the_device() -> Result<()> {
    let Some((gpu, simulator)) = simulated(0) else {
        return Ok(());
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let there = |tensor: Tensor| Var::from_tensor(&tensor.to_device(&device)?);
    let (hidden, weight) = (there(numbers(&[4, 3], 1))?, there(numbers(&[5, 3], 2))?);
    let host = targets(4, 5)?;
    let targets = host.to_device(&device)?;
    let step = || -> Result<()> {
        let options = options(4, &device)?;
        let mean = linear_cross_entropy(&hidden, &weight, &targets, &options)?;
        (mean * 1024.)?.backward()?;
        let options = LinearCrossEntropy::default().ignore_index(2);
        let sum = linear_cross_entropy_sum(&hidden, &weight, &host, &options)?;
        assert_eq!(sum.weight, 3.);
        sum.value.backward()?;
        Ok(())
    };
    // Loads the kernels.
    step()?;
    simulator.reset_counters();
    step()?;
    assert_eq!(simulator.counters().synchronizations, 0);
    Ok(())
}

/// Each allocation of a step fails once: that is an error, and what the step had allocated is free again.
#[test]
fn memory_runs_out_at_every_allocation() -> candle_headroom::Result<()> {
    let Some((gpu, simulator)) = simulated(0) else {
        return Ok(());
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open()?;
    let device = memory.device();
    for dtype in [DType::F32, DType::BF16] {
        let there = |tensor: Tensor| Var::from_tensor(&tensor.to_dtype(dtype)?.to_device(device)?);
        let (hidden, weight) = (there(numbers(&[4, 3], 1))?, there(numbers(&[5, 3], 2))?);
        let (bias, targets) = (there(numbers(&[5], 3))?, targets(4, 5)?.to_device(device)?);
        let options = options(4, device)?.bias(&bias).chunk_rows(2);
        let step = || linear_cross_entropy(&hidden, &weight, &targets, &options)?.backward();
        // Loads the kernels.
        step()?;
        simulator.reset_counters();
        step()?;
        let (points, before) = (simulator.counters().allocations, memory.in_use());
        assert!(points > 10, "{points} allocations");
        for point in 1..=points {
            simulator.reset_counters();
            simulator.fail_allocation(point, 1);
            let error = step().map(drop).expect_err("an allocation failed");
            simulator.disarm();
            assert!(error.resource_exhausted().is_some(), "{point}: {error}");
            device.synchronize()?;
            assert_eq!(memory.in_use(), before, "after allocation {point}");
            step()?;
        }
    }
    Ok(())
}
