use candle_core::{Device, Module, Result};
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
    let selu = |x: &[candle_core::Tensor]| ops::selu(&x[0], 1.6732632, 1.0507009);
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
