//! Inputs that are the same in every run.

use crate::parameters::Numbers;
use candle_core::{DType, Device, Result, Shape, Tensor};
use std::cell::Cell;
use std::sync::OnceLock;

pub const VOCABULARY: usize = 128;
pub const TOKENS: usize = 32;

/// Where models and their inputs are: on the host, or on the GPU that `MODELS_DEVICE=cuda` asks for.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| match std::env::var("MODELS_DEVICE").as_deref() {
        Ok("cuda") => Device::new_cuda(0).expect("there is a GPU"),
        _ => Device::Cpu,
    })
}

thread_local! {
    /// Samples before the first one of an input.
    static SKIPPED: Cell<usize> = const { Cell::new(0) };
}

/// Makes inputs begin with this sample, while `work` runs: those of a part of a batch.
#[cfg_attr(
    not(feature = "trainer"),
    allow(dead_code, reason = "only the trainer cuts batches")
)]
pub fn beginning_at<T>(sample: usize, work: impl FnOnce() -> T) -> T {
    let before = SKIPPED.replace(sample);
    let done = work();
    SKIPPED.set(before);
    done
}

/// (batch, length) token ids below the vocabulary's size; 0 and 1, which models take for padding, do not occur.
pub fn tokens_of(batch: usize, length: usize) -> Result<Tensor> {
    let ids = Numbers::new("tokens")
        .map(|unit| 2 + ((unit + 1.0) * 0.5 * (VOCABULARY - 2) as f64) as u32);
    let ids = ids.skip(SKIPPED.get() * length).take(batch * length);
    Tensor::from_iter(ids, device())?.reshape((batch, length))
}

pub fn tokens(batch: usize) -> Result<Tensor> {
    tokens_of(batch, TOKENS)
}

/// Uniform in -1..1. The first dimension is that of samples.
pub fn noise(shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let numbers = Numbers::new("noise").map(|unit| unit as f32);
    let of_sample: usize = shape.dims().iter().skip(1).product();
    let numbers = numbers.skip(SKIPPED.get() * of_sample);
    Tensor::from_iter(numbers.take(shape.elem_count()), device())?.reshape(shape)
}

pub fn image(batch: usize, side: usize) -> Result<Tensor> {
    noise((batch, 3, side, side))
}

/// A mask of (batch, tokens) that hides nothing.
pub fn all(batch: usize, dtype: DType) -> Result<Tensor> {
    Tensor::ones((batch, TOKENS), dtype, device())
}
