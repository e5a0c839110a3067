//! Which weights are dropped: a function of the seed and the position.

use candle_core::{Result, bail};

use crate::nn::kernel::philox;

/// Dropout of the elements of a tensor, without a stored mask.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    pub seed: u64,
    /// Elements whose random 32 bits are below this are dropped.
    pub threshold: u32,
    /// What the others are multiplied by.
    pub factor: f64,
}

impl Dropout {
    /// `None` for a rate of 0.
    pub fn new(rate: f64, seed: u64) -> Result<Option<Self>> {
        if !(0. ..1.).contains(&rate) {
            bail!("dropout rate must be in [0, 1), got {rate}")
        }
        let dropout = Self {
            seed,
            threshold: (rate * 2f64.powi(32)) as u32,
            factor: 1. / (1. - rate),
        };
        Ok((rate > 0.).then_some(dropout))
    }

    /// Whether the elements from a position on are kept.
    pub fn keeps(self, first: u64) -> impl Iterator<Item = bool> {
        let group = philox::NUMBERS as u64;
        let numbers = (first / group..).flat_map(move |at| philox::numbers(self.seed, 0, at));
        let skipped = (first % group) as usize;
        numbers
            .skip(skipped)
            .map(move |number| number >= self.threshold)
    }
}
