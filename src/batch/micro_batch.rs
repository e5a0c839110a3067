use std::ops::Range;

use crate::mix::mix;

/// Identifies the samples that a closure works on, and the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MicroBatch {
    /// Number of batches that were finished before this one.
    pub step: u64,
    /// Number of finished micro-batches of this batch.
    pub index: usize,
    /// The samples, as positions in the batch.
    pub samples: Range<usize>,
    /// Number of failed attempts at this position in this batch.
    pub attempt: usize,
    /// Whether marked [regions](crate::nn::recompute()) are recomputed in the backward pass.
    pub recomputes: bool,
    pub(crate) base_seed: u64,
    pub(crate) is_check: bool,
}

impl MicroBatch {
    /// Returns a seed for the randomness of this micro-batch.
    ///
    /// It depends on the trainer's seed, on [`step`](Self::step) and on the position of the first sample, so a retry, a step
    /// repeated after an error, or a run resumed from [saved state](crate::AdaptiveTrainer::load_state) draws the same numbers.
    ///
    /// [`nn::ops::dropout`](crate::nn::ops::dropout) uses it by itself: the closure runs inside of [`nn::seeded`](crate::nn::seeded)
    /// with this seed. candle's CPU backend cannot be seeded: there use the seed with a generator of your own. On CUDA, pass it to
    /// `Device::set_seed`.
    pub fn seed(&self) -> u64 {
        let step = mix(self.base_seed ^ mix(self.step));
        // A check compares samples together with the same samples apart.
        let first = if self.is_check { 0 } else { self.samples.start };
        mix(step ^ first as u64)
    }

    /// Returns whether the closure is called only to [check](crate::AdaptiveTrainer::check_cut) that its loss does not depend on the cut. The
    /// result counts in no update, so a closure that counts samples or computes metrics leaves these samples out. The loss must be the same as
    /// otherwise.
    pub fn is_check(&self) -> bool {
        self.is_check
    }
}
