//! What happens to a chunk of scores, by kernels of ours.

use candle_core::{Device, Result, Tensor, bail};

use super::Found;
use super::chunk::Chunk;
use crate::nn::attention::rule::{NAME, Rule};

/// Whether there are kernels for a device.
pub fn run_on(device: &Device) -> bool {
    cfg!(feature = "cuda") && device.is_cuda()
}

pub fn weights(_: &Rule, _: &Chunk, _: Tensor) -> Result<(Tensor, Tensor)> {
    bail!("{NAME}: no kernels")
}

pub fn differentiate(_: &Rule, _: &Chunk, _: [Tensor; 2], _: [&Tensor; 2]) -> Result<Found> {
    bail!("{NAME}: no kernels")
}
