//! Which weights are dropped: a function of the seed and the position.

use candle_core::{Result, bail};

use crate::kernel::philox;
use crate::seed::{derive, is_frozen};

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
    /// The next dropout of the thread's scope. `None` for a rate of 0, and where dropout is frozen.
    pub fn new(rate: f64) -> Result<Option<Self>> {
        if !(0. ..1.).contains(&rate) {
            bail!("dropout rate must be in [0, 1), got {rate}")
        }
        Ok((rate > 0. && !is_frozen()).then(|| Self {
            seed: derive(),
            threshold: (rate * 2f64.powi(32)) as u32,
            factor: 1. / (1. - rate),
        }))
    }

    /// Whether the elements from a position on are kept.
    pub fn keeps(self, first: u64) -> impl Iterator<Item = bool> {
        let group = philox::NUMBERS as u64;
        let numbers =
            (first / group..).flat_map(move |at| philox::numbers(self.seed, philox::ATTENTION, at));
        let skipped = (first % group) as usize;
        numbers
            .skip(skipped)
            .map(move |number| number >= self.threshold)
    }
}
