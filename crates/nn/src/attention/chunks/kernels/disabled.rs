use candle_core::{Device, Result, Tensor, bail};

use crate::attention::chunks::chunk::Chunk;
use crate::attention::rule::{NAME, Rule};

/// Whether there are kernels for a device.
pub fn run_on(_: &Device) -> bool {
    false
}

pub fn weights(_: &Rule, _: &Chunk, _: &Tensor) -> Result<Tensor> {
    bail!("{NAME}: built without kernels")
}

pub fn differentiate(_: &Rule, _: &Chunk, _: [&Tensor; 2], _: [&Tensor; 2]) -> Result<()> {
    bail!("{NAME}: built without kernels")
}
