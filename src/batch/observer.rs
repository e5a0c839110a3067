//! The events of a batch, and who they are for: the one stream that timelines, incident logs and monitors read.

use std::fmt::{self, Debug};
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::event::Event;
use super::policy::Completed;
use super::recompute::Plan;
use crate::error::{Error, MemoryReading, Phase, ResourceExhausted};
use crate::mix::mix;

/// Receives the [`TrainingEvent`]s of a trainer or processor: the one stream that [`Timeline`](crate::Timeline),
/// [`IncidentLog`](crate::incident::IncidentLog) and [`Monitor`](crate::Monitor) read.
///
/// It is called on the training thread, so its time is added to the step: return quickly, and neither block nor panic.
///
/// ```
/// use candle_headroom::batch::{BatchProcessor, Fixed, Observer, TrainingEvent};
///
/// #[derive(Debug)]
/// struct Print;
///
/// impl Observer for Print {
///     fn observe(&self, event: &TrainingEvent<'_>) {
///         println!("{} {}: {:?}", event.task, event.step, event.kind);
///     }
/// }
///
/// let processor = BatchProcessor::builder(Fixed::new(4)?).observer(Print).build();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Observer: Debug + Send + Sync {
    /// Called for each event.
    fn observe(&self, event: &TrainingEvent<'_>);
}

const _: Option<&dyn Observer> = None; // object-safe

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn observe(&self, event: &TrainingEvent<'_>) {
        (**self).observe(event);
    }
}

/// The purpose of a batch. Batches are counted for each task separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// A trainer's steps.
    Training,
    /// [`AdaptiveTrainer::evaluate`](crate::AdaptiveTrainer::evaluate).
    Evaluation,
    /// A [`BatchProcessor`](super::BatchProcessor), and [`process_batches`](crate::process_batches).
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

/// Something that happened while a batch was processed: the samples of one call of
/// [`AdaptiveTrainer::step`](crate::AdaptiveTrainer::step) or [`BatchProcessor::process`](super::BatchProcessor::process).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TrainingEvent<'a> {
    /// This process's number in the trainer's [`Group`](crate::distributed::Group); `None` if it trains alone.
    pub rank: Option<usize>,
    /// The purpose of the batch.
    pub task: Task,
    /// The batch's number within its task, as in [`MicroBatch::step`].
    pub step: u64,
    /// The policy's plan, if it has one; `None` when a batch begins, for phases, and for micro-batches.
    pub plan: Option<Plan>,
    /// What happened.
    pub kind: EventKind<'a>,
}

/// The kind of a [`TrainingEvent`], with its details.
///
/// Times are host times: on an asynchronous device they are the times of queuing, because nothing waits for the device.
/// Without a [`DeviceMemory`](crate::DeviceMemory), all memory fields are `None`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// A batch begins.
    #[non_exhaustive]
    BatchBegan {
        /// Number of samples; 0 for an update apart from its batches.
        samples: usize,
        /// Memory at the start.
        memory: MemoryReading,
        /// How long the caller waited for the batch; `None` if it came from no [`Loader`](crate::data::Loader).
        waited: Option<Duration>,
    },
    /// A phase of a micro-batch, or the update, begins. [`Phase::Recompute`] has no beginning of its own.
    PhaseBegan(Phase),
    /// A phase has ended. Those of [`Phase::Recompute`] lie within a backward pass and are reported just before its end.
    #[non_exhaustive]
    PhaseEnded {
        /// The phase.
        phase: Phase,
        /// When it began.
        began: Instant,
        /// Its duration.
        elapsed: Duration,
        /// Memory at its end; the peak is the highest use since the micro-batch, or the update, began.
        memory: MemoryReading,
        /// Whether it succeeded.
        succeeded: bool,
    },
    /// A micro-batch is finished.
    #[non_exhaustive]
    MicroBatchEnded {
        /// The micro-batch.
        micro: &'a MicroBatch,
        /// Its memory use.
        completed: &'a Completed,
    },
    /// Memory ran out. If the work is retried a [`Happened`](Self::Happened) follows, else a [`BatchFailed`](Self::BatchFailed).
    Exhausted(&'a ResourceExhausted),
    /// The micro-batch size changed, work is retried, or an update went over the limit.
    Happened(&'a Event),
    /// A batch is finished.
    #[non_exhaustive]
    BatchEnded {
        /// When it began.
        began: Instant,
        /// Its duration.
        elapsed: Duration,
        /// Sizes of the finished micro-batches, in order.
        sizes: &'a [usize],
        /// Number of micro-batches and updates that did not fit.
        retries: usize,
        /// Number of samples that were computed again.
        recomputed: usize,
        /// Memory at its end; the peak is the highest use since it began.
        memory: MemoryReading,
        /// Whether parameters were updated; `None` if only the device knows.
        updated: Option<bool>,
    },
    /// A batch ended with this error, which is returned to the caller next.
    BatchFailed(&'a Error),
}

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
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::batch::{BatchProcessor, Fixed};
    ///
    /// let x = Tensor::zeros((4, 2), DType::F32, &Device::Cpu)?;
    /// let seeds = || {
    ///     let mut processor = BatchProcessor::builder(Fixed::new(2)?).build();
    ///     Ok::<_, candle_headroom::Error>(processor.process(&x, |_, micro| Ok(micro.seed()))?.results)
    /// };
    /// let once = seeds()?;
    /// assert_eq!(once, seeds()?); // in another run
    /// assert_ne!(once[0], once[1]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
