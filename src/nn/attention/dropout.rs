//! Which weights are dropped: a function of the seed and the position.

use candle_core::{Result, bail};

/// Dropout of the elements of a tensor, without a stored mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    key: u64,
    /// Elements whose random 32 bits are below this are dropped.
    threshold: u32,
    /// What the others are multiplied by.
    factor: f64,
}

impl Dropout {
    /// `None` for a rate of 0.
    pub fn new(rate: f64, seed: u64) -> Result<Option<Self>> {
        if !(0. ..1.).contains(&rate) {
            bail!("dropout rate must be in [0, 1), got {rate}")
        }
        let threshold = (rate * f64::from(u32::MAX)) as u32;
        let dropout = Self {
            key: mix(seed),
            threshold,
            factor: 1. / (1. - rate),
        };
        Ok((rate > 0.).then_some(dropout))
    }

    pub fn keeps(&self, index: u64) -> bool {
        let counter = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mix(self.key.wrapping_add(counter)) >> 32) as u32 >= self.threshold
    }

    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Key and threshold, for kernels that compute the same.
    #[cfg(feature = "cuda")]
    pub fn parts(&self) -> (u64, u32) {
        (self.key, self.threshold)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
