use std::fmt::{self, Debug};
use std::time::{Duration, Instant};

use super::{Completed, Event, MicroBatch, Plan};
use crate::error::{Error, MemoryReading, Phase, ResourceExhausted};

/// Somebody who is told what happens while batches are worked through: a [`Timeline`](crate::Timeline), an
/// [`IncidentLog`](crate::IncidentLog), or one of your own.
///
/// It is called on the thread that works, between two pieces of work, so what it takes is added to the step: be quick, and
/// neither block nor panic. It changes nothing.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::sync::Arc;
/// use candle_core::{Device, Tensor};
/// use candle_headroom::{BatchProcessor, Fixed, Moment, Observer};
///
/// #[derive(Debug, Default)]
/// struct Chunks(AtomicUsize);
///
/// impl Observer for Chunks {
///     fn observe(&self, moment: &Moment<'_>) {
///         if let Moment::MicroBatchEnded { .. } = moment {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let chunks = Arc::new(Chunks::default());
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// BatchProcessor::new(Fixed::new(4)?).observer(chunks.clone()).process(&x, |_, _| Ok(()))?;
/// assert_eq!(chunks.0.load(Ordering::Relaxed), 3);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Observer: Debug + Send + Sync {
    /// Something has happened.
    fn observe(&self, moment: &Moment<'_>);
}

const _: Option<&dyn Observer> = None; // object-safe

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn observe(&self, moment: &Moment<'_>) {
        (**self).observe(moment);
    }
}

/// What a batch is worked through for. Each task counts its own batches.
///
/// ```
/// use candle_headroom::Task;
///
/// assert_eq!(Task::Evaluation.to_string(), "evaluation");
/// ```
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// A trainer's steps.
    Training,
    /// [`AdaptiveTrainer::evaluate`](crate::AdaptiveTrainer::evaluate).
    Evaluation,
    /// A [`BatchProcessor`](crate::BatchProcessor) of its own.
    #[default]
    Processing,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Evaluation => "evaluation",
            Self::Processing => "processing",
        })
    }
}

/// What an [`Observer`] is told.
///
/// A batch is what one call of [`AdaptiveTrainer::step`](crate::AdaptiveTrainer::step),
/// [`AccumulatingTrainer::step`](crate::AccumulatingTrainer::step) or [`BatchProcessor::process`](crate::BatchProcessor::process)
/// works through. Its number `step` is that of [`MicroBatch::step`], and counts within its `task`. Times are those of the host; on a device that works
/// asynchronously they are the times of queuing, since nobody waits for it. Memory is all `None` where no memory was given.
///
/// ```
/// use candle_headroom::Moment;
///
/// fn is_trouble(moment: &Moment<'_>) -> bool {
///     matches!(moment, Moment::Exhausted { .. } | Moment::BatchFailed { .. })
/// }
/// # let _: fn(&Moment<'_>) -> bool = is_trouble;
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Moment<'a> {
    /// A batch begins.
    BatchBegan {
        /// What the batch is for.
        task: Task,
        /// Its number.
        step: u64,
        /// Its samples.
        samples: usize,
        /// What is in use, held and allowed now, in bytes.
        memory: MemoryReading,
    },
    /// A phase of a micro-batch, or the update, begins.
    PhaseBegan {
        /// What the batch is for.
        task: Task,
        /// Of which batch.
        step: u64,
        /// Which phase.
        phase: Phase,
    },
    /// A phase has ended, well or not.
    PhaseEnded {
        /// What the batch is for.
        task: Task,
        /// Of which batch.
        step: u64,
        /// Which phase.
        phase: Phase,
        /// When it began.
        began: Instant,
        /// How long the host took for it.
        elapsed: Duration,
        /// Memory at its end, in bytes; the peak is the highest use since the micro-batch, or the update, began.
        memory: MemoryReading,
        /// Whether it went well.
        succeeded: bool,
    },
    /// A micro-batch is finished.
    MicroBatchEnded {
        /// What the batch is for.
        task: Task,
        /// Which.
        micro: &'a MicroBatch,
        /// What it took.
        completed: &'a Completed,
    },
    /// Memory ran out. Whether the work is tried again is told by an [`Event`], or by the end of the batch.
    Exhausted {
        /// What the batch is for.
        task: Task,
        /// In which batch.
        step: u64,
        /// What ran out, where and why.
        exhausted: &'a ResourceExhausted,
        /// What the policy believes now, where it can tell.
        plan: Option<Plan>,
    },
    /// The size of the micro-batches changed, or something was tried again.
    Happened {
        /// What the batch is for.
        task: Task,
        /// In which batch.
        step: u64,
        /// What.
        event: &'a Event,
        /// What the policy believes now, where it can tell.
        plan: Option<Plan>,
    },
    /// A batch is finished.
    BatchEnded {
        /// What the batch is for.
        task: Task,
        /// Its number.
        step: u64,
        /// When it began.
        began: Instant,
        /// How long the host took for all of it.
        elapsed: Duration,
        /// The finished micro-batches' sizes, in order.
        sizes: &'a [usize],
        /// How many micro-batches did not fit.
        retries: usize,
        /// How many samples were computed again.
        recomputed: usize,
        /// The highest use meanwhile, in bytes.
        peak: Option<u64>,
        /// What is in use, held and allowed now, in bytes.
        memory: MemoryReading,
        /// Whether parameters were updated.
        updated: bool,
        /// What the policy believes now, where it can tell.
        plan: Option<Plan>,
    },
    /// A batch ended with an error, which the caller is given next.
    BatchFailed {
        /// What the batch is for.
        task: Task,
        /// Its number.
        step: u64,
        /// When it began.
        began: Instant,
        /// What ended it.
        error: &'a Error,
        /// What the policy believes now, where it can tell.
        plan: Option<Plan>,
    },
}
