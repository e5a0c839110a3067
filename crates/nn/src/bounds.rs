//! Tensors bounded by a number, as by candle's `maximum` and `minimum` with the same operations. Those are generic over their argument, and a
//! crate that calls them compiles candle's kernels on the CPU again, for all types.

use candle_core::{Device, Result, Tensor};

/// `bound` where an element is less, and NaN where it is NaN.
pub fn at_least(xs: &Tensor, bound: f64) -> Result<Tensor> {
    xs.broadcast_maximum(&number(bound, xs)?)
}

/// `bound` where an element is larger, and NaN where it is NaN.
pub fn at_most(xs: &Tensor, bound: f64) -> Result<Tensor> {
    xs.broadcast_minimum(&number(bound, xs)?)
}

fn number(number: f64, like: &Tensor) -> Result<Tensor> {
    let number = Tensor::new(number, &Device::Cpu)?;
    number.to_dtype(like.dtype())?.to_device(like.device())
}
