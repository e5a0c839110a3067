//! Regions that are recomputed in the backward pass, against the same layers without regions.

mod failures;
mod gradients;
mod outputs;
mod second_run;
mod tiles;

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use candle_headroom_nn::recompute;

use super::check::{numbers, same_bits};

const WIDTH: usize = 6;

fn var(shape: &[usize], seed: u64) -> Result<Var> {
    Var::from_tensor(&numbers(shape, seed).to_dtype(DType::F32)?)
}

/// A block with parameters of its own.
#[derive(Clone)]
struct Block {
    up: Var,
    down: Var,
}

impl Block {
    fn new(seed: u64) -> Result<Self> {
        Ok(Self {
            up: var(&[WIDTH, 2 * WIDTH], seed)?,
            down: var(&[2 * WIDTH, WIDTH], seed + 1)?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs + xs.matmul(&self.up)?.tanh()?.matmul(&self.down)?
    }

    fn vars(&self) -> [Var; 2] {
        [self.up.clone(), self.down.clone()]
    }
}

/// Runs a block as a region, or as it is.
fn region(is_region: bool, xs: &Tensor, block: &Block) -> Result<Tensor> {
    let block = block.clone();
    match is_region {
        true => recompute(xs, move |xs| block.forward(xs)),
        false => block.forward(xs),
    }
}

/// Asserts that the gradients of two runs agree to the bit, and that there is one for each Var.
fn same_gradients(found: &GradStore, expected: &GradStore, vars: &[Var]) -> Result<()> {
    for var in vars {
        let gradient = |store: &GradStore| store.get(var).expect("a gradient").detach();
        same_bits(&gradient(found), &gradient(expected))?;
    }
    Ok(())
}
