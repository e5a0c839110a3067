//! Inputs that are the same in every run.

use crate::parameters::Numbers;
use candle_core::{DType, Device, Result, Shape, Tensor};

pub const VOCABULARY: usize = 128;
pub const TOKENS: usize = 32;

/// (batch, length) token ids below the vocabulary's size; 0 and 1, which models take for padding, do not occur.
pub fn tokens_of(batch: usize, length: usize) -> Result<Tensor> {
    let ids = Numbers::new("tokens")
        .map(|unit| 2 + ((unit + 1.0) * 0.5 * (VOCABULARY - 2) as f64) as u32);
    Tensor::from_iter(ids.take(batch * length), &Device::Cpu)?.reshape((batch, length))
}

pub fn tokens(batch: usize) -> Result<Tensor> {
    tokens_of(batch, TOKENS)
}

/// Uniform in -1..1.
pub fn noise(shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let numbers = Numbers::new("noise").map(|unit| unit as f32);
    Tensor::from_iter(numbers.take(shape.elem_count()), &Device::Cpu)?.reshape(shape)
}

pub fn image(batch: usize, side: usize) -> Result<Tensor> {
    noise((batch, 3, side, side))
}

/// A mask of (batch, tokens) that hides nothing.
pub fn all(batch: usize, dtype: DType) -> Result<Tensor> {
    Tensor::ones((batch, TOKENS), dtype, &Device::Cpu)
}
