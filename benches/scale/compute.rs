//! One rank's part of an update: micro-batches, delays, and exhaustions that it retries by itself.

use crate::constants::{CLEANUP, FIXED, MICRO_BATCHES, NOISE, REGROW, STRAGGLE, STRAGGLES, WORK};
use crate::random::Random;

/// Seconds of an update's samples in whole micro-batches, without noise: the useful time.
pub const USEFUL: f64 = MICRO_BATCHES as f64 * (WORK + FIXED);

/// What varies between experiments.
#[derive(Clone, Copy)]
pub struct Conditions {
    /// Of a whole micro-batch.
    pub exhaustions: f64,
    pub noise: f64,
    pub straggles: f64,
    /// Whether all micro-batches have half the size, at which none exhausts the memory.
    pub halved: bool,
}

impl Conditions {
    pub fn usual(exhaustions: f64) -> Self {
        Self {
            exhaustions,
            noise: NOISE,
            straggles: STRAGGLES,
            halved: false,
        }
    }
}

#[derive(Clone, Default)]
pub struct Rank {
    /// Updates for which its micro-batches still have half the size.
    small: u32,
}

/// Seconds that a rank computes in an update.
#[derive(Clone, Copy, Default)]
pub struct Computed {
    /// Without what exhaustions cost.
    pub plain: f64,
    pub whole: f64,
    pub exhaustions: u32,
}

impl Rank {
    pub fn compute(&mut self, conditions: &Conditions, random: &mut Random) -> Computed {
        let mut computed = Computed::default();
        if random.happens(conditions.straggles) {
            computed.plain += STRAGGLE * USEFUL * random.exponential();
        }
        if conditions.halved {
            computed.plain += MICRO_BATCHES as f64 * FIXED;
        }
        computed.whole = computed.plain;
        for _ in 0..MICRO_BATCHES {
            let time = (WORK + FIXED) * (1. + conditions.noise * random.normal());
            computed.plain += time;
            computed.whole += time;
            if conditions.halved {
                continue;
            }
            if self.small == 0 && random.happens(conditions.exhaustions) {
                // What ran until the memory was exhausted is lost. The micro-batch and those that follow run in halves.
                computed.whole += random.uniform() * time + CLEANUP;
                computed.exhaustions += 1;
                self.small = REGROW + 1;
            }
            if self.small > 0 {
                computed.whole += FIXED;
            }
        }
        self.small = self.small.saturating_sub(1);
        computed
    }
}
