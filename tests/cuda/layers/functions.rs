//! Every function of `nn` on the device: against the CPU, and a sample alone against the same sample in a batch.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{Activation, Module, ops};

use crate::check::{numbers, rounding, same_bits};
use crate::functions::all;
use crate::functions::alone::{differences, off_in_sums, off_on_device};
use crate::gpu::gpu;

#[test]
fn no_function_depends_on_the_cut_or_the_device() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let mut wrong = Vec::new();
    for case in all().iter().filter(|case| !case.only_cpu) {
        for dtype in [DType::F32, DType::BF16] {
            if !case.dtypes.contains(&dtype) {
                continue;
            }
            match differences(case, 3, &[2], (dtype, &device)) {
                Ok(found) => wrong.extend(found),
                Err(error) => wrong.push(format!("{} ({dtype:?}): {error}", case.name)),
            }
            // Chunks of attention round each result.
            match off_on_device(case, 3, (dtype, &device)) {
                Ok(off) if off <= 10. * rounding(dtype) => {}
                Ok(off) => wrong.push(format!("{} ({dtype:?}): {off:e} off", case.name)),
                Err(error) => wrong.push(format!("{} ({dtype:?}): {error}", case.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// What a layer is given in pieces is copied first, each element from its place.
#[test]
fn views_at_any_strides() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    type View = fn(&Tensor) -> Result<Tensor>;
    let views: [View; 10] = [
        |x| x.transpose(0, 3),
        |x| x.permute((2, 0, 3, 1)),
        |x| x.narrow(2, 1, 3)?.transpose(1, 2),
        |x| x.narrow(0, 1, 2)?.narrow(3, 2, 3),
        |x| x.get(2)?.t(),
        |x| x.get(1)?.transpose(0, 2)?.narrow(1, 2, 2),
        |x| x.get(1)?.get(3)?.t()?.get(4),
        |x| x.narrow(1, 3, 1)?.broadcast_as((3, 7, 5, 6)),
        |x| x.unsqueeze(0)?.transpose(1, 4), // five dimensions
        |x| x.narrow(1, 0, 0)?.transpose(2, 3),
    ];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = numbers(&[3, 4, 5, 6], 1).to_dtype(dtype)?;
        let on_device = x.to_device(&device)?;
        for view in &views {
            let relu = |x: &Tensor| Activation::Relu.forward(&view(x)?);
            let found = relu(&on_device)?.to_device(&Device::Cpu)?;
            same_bits(&found, &relu(&x)?)?;
        }
    }
    Ok(())
}

/// A sum of ones in bf16 stops at 256.
#[test]
fn sums_over_tokens_are_in_f32() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let summed = [
        "embedding",
        "layer_norm",
        "linear: rows",
        "loss::cross_entropy",
        "loss::nll",
        "loss::mse",
        "loss::linear_cross_entropy",
    ];
    for name in summed {
        let cases = all();
        let case = cases.iter().find(|case| case.name == name);
        let case = case.unwrap_or_else(|| panic!("no case {name}"));
        let off = off_in_sums(case, 3, 700, (DType::BF16, &device))?;
        assert!(off <= rounding(DType::BF16), "{name}: {off:e} off");
    }
    Ok(())
}

/// candle's operation rounds the exponentials before it divides by their sum.
#[test]
fn softmax_of_half_precision_is_rounded_once() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    // Half a unit in the last place, and the rounding of f32.
    for (dtype, unit) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
        let xs = numbers(&[6, 50], 1).to_dtype(dtype)?;
        let found = ops::softmax_last_dim(&xs.to_device(&device)?)?;
        let found = found.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let exact = candle_nn::ops::softmax(&xs.to_dtype(DType::F64)?, 1)?;
        let off = ((found - &exact)? / exact)?.abs()?.max_all()?;
        let off = off.to_scalar::<f64>()? / unit;
        assert!(off <= 1.001, "{dtype:?}: {off} times half a unit");
    }
    Ok(())
}
