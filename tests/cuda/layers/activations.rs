use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_headroom::nn::{Activation, ops};

use crate::check::{agrees_on, numbers};
use crate::gpu::gpu;

#[test]
fn activations() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    // Beyond a block, and on both sides of every kink.
    let inputs = [(numbers(&[3, 110], 1) * 4.)?];
    for activation in [
        Activation::Gelu,
        Activation::NewGelu,
        Activation::Relu,
        Activation::Relu2,
        Activation::Relu6,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::HardSigmoid,
        Activation::Swiglu,
        Activation::Mish,
        Activation::HardSwish,
        Activation::Elu(0.7),
        Activation::LeakyRelu(0.1),
    ] {
        agrees_on(&device, &|x| activation.forward(&x[0]), &inputs)?;
    }
    let selu = |x: &[Tensor]| ops::selu(&x[0], 1.6732632, 1.0507009);
    agrees_on(&device, &selu, &inputs)
}

#[test]
fn swiglu_of_short_and_long_rows() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for shape in [&[2][..], &[5, 6], &[2, 3, 66], &[2, 600]] {
        agrees_on(&device, &|x| ops::swiglu(&x[0]), &[numbers(shape, 1)])?;
    }
    Ok(())
}

#[test]
fn gated_tensors() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for shape in [&[1][..], &[3, 110], &[2, 3, 600]] {
        let inputs = [(numbers(shape, 1) * 4.)?, numbers(shape, 2)];
        agrees_on(&device, &|x| ops::silu_mul(&x[0], &x[1]), &inputs)?;
    }
    Ok(())
}

/// The values and the gradient, with ones as the gradient of the values, in f64.
fn values_and_slopes(activation: Activation, xs: &Tensor) -> Result<[Vec<f64>; 2]> {
    let xs = Var::from_tensor(xs)?;
    let ys = activation.forward(&xs)?;
    let mut store = ys.sum_all()?.backward()?;
    let values = |tensor: Tensor| {
        let here = tensor.to_device(&Device::Cpu)?;
        here.to_dtype(DType::F64)?.to_vec1::<f64>()
    };
    let slopes = store.remove(&xs).expect("a gradient");
    Ok([values(ys)?, values(slopes)?])
}

#[test]
fn half_precision_is_rounded_once() -> Result<()> {
    use Activation::{Elu, Gelu, NewGelu, Relu, Sigmoid, Silu};
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let xs = Tensor::arange_step(-12.5f64, 12.5, 0.125, &Device::Cpu)?;
    // Half a unit in the last place, doubled for values that lie next to the middle between two numbers; the smallest f16.
    for (dtype, unit) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let xs = xs.to_dtype(dtype)?;
        for activation in [Gelu, NewGelu, Relu, Silu, Sigmoid, Elu(0.7)] {
            let [found, _] = values_and_slopes(activation, &xs.to_device(&device)?)?;
            let [expected, _] = values_and_slopes(activation, &xs.to_dtype(DType::F64)?)?;
            for (found, expected) in found.into_iter().zip(expected) {
                let limit = unit * expected.abs() + 6e-8;
                assert!(
                    (found - expected).abs() <= limit,
                    "{dtype:?} {activation:?}: {found}, not {expected}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn far_out_slopes_of_mish_are_the_limits() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for dtype in [DType::F32, DType::F64] {
        let far = Tensor::new(&[1e12f64, 1e18, 3e38, -1e12, -3e38, 90.], &device)?;
        let [_, slopes] = values_and_slopes(Activation::Mish, &far.to_dtype(dtype)?)?;
        for (slope, limit) in slopes.iter().zip([1., 1., 1., 0., 0., 1.]) {
            // At 20, whose slope those beyond share, it is 3e-16 more than 1.
            assert!((slope - limit).abs() < 1e-15, "{dtype:?}: {slopes:?}");
        }
    }
    Ok(())
}
