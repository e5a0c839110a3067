use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_headroom::nn::quantized::QMatMul;
use candle_headroom::nn::{self, Linear, ops};

use crate::check::{FLOATS, agrees_on, difference, numbers, same_bits};
use crate::gpu::gpu;

#[test]
fn linear() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    // The last one has more rows than a part of a bias' gradient, and more columns than a block.
    for (shape, out) in [
        (&[7, 6][..], 4),
        (&[2, 3, 6], 4),
        (&[2, 3, 5, 6], 3),
        (&[2, 100, 6], 133),
    ] {
        let inputs = [numbers(shape, 1), numbers(&[out, 6], 2), numbers(&[out], 3)];
        let layer = |x: &[Tensor]| Linear::new(x[1].clone(), Some(x[2].clone())).forward(&x[0]);
        agrees_on(&device, &layer, &inputs)?;
    }
    Ok(())
}

#[test]
fn dropout_has_the_cpus_bits() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for dtype in FLOATS {
        for len in [1, 3, 4, 33, 1000] {
            let xs = numbers(&[len], 1).to_dtype(dtype)?;
            let run = |xs: &Tensor| -> Result<[Tensor; 3]> {
                let xs = Var::from_tensor(xs)?;
                let once = || ops::dropout(&xs, 0.3);
                let [first, second] = nn::seeded(u64::MAX - 5, || [once(), once()]);
                let (first, second) = (first?, second?);
                let mut store = second.sum_all()?.backward()?;
                Ok([first, second, store.remove(&xs).expect("a gradient")])
            };
            for (here, there) in run(&xs)?.iter().zip(run(&xs.to_device(&device)?)?) {
                same_bits(here, &there.to_device(&Device::Cpu)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_gradient_of_a_quantized_product() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    // Not the kernels that candle launches through CUDA's runtime, which the simulator does not have.
    candle_core::quantized::cuda::set_force_dmmv(true);
    let values = numbers(&[5, 256], 5).to_dtype(DType::F32)?;
    for dtype in [
        GgmlDType::Q4_0,
        GgmlDType::Q8_0,
        GgmlDType::Q4K,
        GgmlDType::Q6K,
    ] {
        let gradient = |device: &Device| -> Result<Tensor> {
            let weight = QTensor::quantize_onto(&values, dtype, device)?;
            let layer = QMatMul::from_arc(Arc::new(weight))?;
            let xs = Tensor::ones((2, 3, 256), DType::F32, device)?;
            let xs = Var::from_tensor(&xs)?;
            let mut store = layer.forward(&xs)?.sum_all()?.backward()?;
            let gradient = store
                .remove(&xs)
                .expect("a gradient")
                .to_device(&Device::Cpu)?;
            gradient.to_dtype(DType::F64)
        };
        let off = difference(&gradient(&device)?, &gradient(&Device::Cpu)?);
        assert!(off < 1e-5, "{dtype:?}: {off:e} off");
    }
    Ok(())
}

/// candle asserts the one, indexes for the other, and compares no widths.
#[test]
fn experts_of_other_shapes_are_an_error() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let values = numbers(&[2, 5, 256], 5).to_dtype(DType::F32)?;
    let weight = QTensor::quantize_onto(&values, GgmlDType::Q8_0, &device)?;
    let layer = QMatMul::from_arc(Arc::new(weight))?;
    for (xs, ids) in [
        (&[3, 1, 256][..], &[2, 2][..]),
        (&[3, 256], &[3, 2]),
        (&[3, 1, 256], &[3]),
        (&[3, 1, 128], &[3, 2]),
        (&[3, 3, 256], &[3, 2]),
    ] {
        let xs = Tensor::zeros(xs, DType::F32, &device)?;
        let ids = Tensor::zeros(ids, DType::U32, &device)?;
        assert!(layer.indexed_moe_forward(&xs, &ids).is_err());
    }
    Ok(())
}
