use std::ops::Range;

/// Which samples a closure is given, and in which attempt.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{BatchProcessor, Fixed};
///
/// let x = Tensor::zeros((5, 2), DType::F32, &Device::Cpu)?;
/// let seen = BatchProcessor::new(Fixed::new(2)?).process(&x, |_chunk, micro| Ok(micro.samples.clone()))?;
/// assert_eq!(seen.results, [0..2, 2..4, 4..5]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MicroBatch {
    /// How many batches were finished before this one: updates, for an [`AdaptiveTrainer`](crate::AdaptiveTrainer).
    pub step: u64,
    /// How many micro-batches of this batch are finished.
    pub index: usize,
    /// Its samples, as positions in the batch.
    pub samples: Range<usize>,
    /// How often a micro-batch that begins at this sample failed in this step.
    pub attempt: usize,
    pub(crate) base_seed: u64,
}

impl MicroBatch {
    /// A seed for this micro-batch's randomness, from the trainer's seed, [`step`](Self::step) and the first sample: the same in
    /// each attempt, so that a retried micro-batch, or a step that is repeated after an error, draws what the failed one drew.
    /// After a resume `step` counts from 0 again: give the trainer another seed then.
    ///
    /// candle's CPU backend cannot be seeded: feed a generator of your own with it. On CUDA pass it to `Device::set_seed`.
    pub fn seed(&self) -> u64 {
        let step = mix(self.base_seed ^ mix(self.step));
        mix(step ^ self.samples.start as u64)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: «Fast splittable pseudorandom number generators», 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_follow_step_and_first_sample_only() {
        let micro = MicroBatch {
            step: 3,
            index: 1,
            samples: 8..16,
            attempt: 0,
            base_seed: 7,
        };
        let retried = MicroBatch {
            attempt: 2,
            index: 4,
            samples: 8..10,
            ..micro.clone()
        };
        assert_eq!(micro.seed(), retried.seed());
        let next_step = MicroBatch {
            step: 4,
            ..micro.clone()
        };
        let next_samples = MicroBatch {
            samples: 9..16,
            ..micro.clone()
        };
        assert_ne!(micro.seed(), next_step.seed());
        assert_ne!(micro.seed(), next_samples.seed());
    }
}
