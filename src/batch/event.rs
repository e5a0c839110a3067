use std::fmt;
use std::ops::Range;

use bytesize::ByteSize;

use crate::error::{Cause, Phase};

/// Something that happened to the size of the micro-batches, or because of memory.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::{testing, BatchProcessor, Event, Halving};
///
/// let x = Tensor::arange(0f32, 8., &Device::Cpu)?;
/// let processed = BatchProcessor::new(Halving::from_whole_batch()).process(&x, |chunk, _| {
///     match chunk.dim(0)? {
///         0..=4 => Ok(()),
///         _ => Err(testing::out_of_memory()), // room for 4
///     }
/// })?;
/// assert!(matches!(&processed.events[0], Event::Retried { samples, to: 4, .. } if *samples == (0..8)));
/// println!("{}", processed.events[0]); // micro-batch 8 → 4: out of memory in forward, the cause is not known
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The policy went to a larger size.
    Grown {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from here on.
        to: usize,
    },
    /// The policy went to a smaller size without a failure: a finished micro-batch went over a soft limit (its work was kept),
    /// or the present use and limit leave less room.
    Shrunk {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from here on.
        to: usize,
    },
    /// The policy went to another size to see whether it is as fast, or because it is.
    Paced {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from here on.
        to: usize,
    },
    /// A micro-batch did not fit; its samples were computed again.
    Retried {
        /// The samples that failed, as positions in the batch.
        samples: Range<usize>,
        /// The size that is tried next; the same where the cause may have passed.
        to: usize,
        /// In which phase it failed.
        phase: Option<Phase>,
        /// Why it failed.
        cause: Cause,
    },
    /// The update itself, which no micro-batch size changes, went over a soft limit: the optimizer's temporaries.
    OverLimit {
        /// The highest use during the update, in bytes.
        peak: u64,
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The accumulated gradients were lost, so the batch was begun again.
    Restarted {
        /// The samples that had been finished.
        lost: usize,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grown { from, to } => write!(f, "micro-batch {from} → {to}: there is room"),
            Self::Shrunk { from, to } => write!(f, "micro-batch {from} → {to}: less room"),
            Self::Paced { from, to } => write!(f, "micro-batch {from} → {to}: for speed"),
            Self::Retried {
                samples,
                to,
                phase,
                cause,
            } => {
                write!(f, "micro-batch {} → {to}: ", samples.len())?;
                match phase {
                    Some(phase) => write!(f, "out of memory in {phase}, {cause}"),
                    None => write!(f, "out of memory, {cause}"),
                }
            }
            Self::OverLimit { peak, limit } => write!(
                f,
                "the update used {} of {}: over the limit",
                ByteSize(*peak),
                ByteSize(*limit)
            ),
            Self::Restarted { lost } => write!(f, "begun again: {lost} finished samples lost"),
        }
    }
}
