use std::fmt::{self, Debug};
use std::time::{Duration, Instant};

use super::event::Event;
use super::micro_batch::MicroBatch;
use super::plan::Plan;
use super::policy::Completed;
use crate::error::{Error, MemoryReading, Phase, ResourceExhausted};

/// Receives the [`TrainingEvent`]s of a trainer or processor. [`Timeline`](crate::Timeline) and
/// [`IncidentLog`](crate::incident::IncidentLog) are observers.
///
/// It is called on the thread that trains, between two pieces of work, so its time is added to the step: return quickly, and
/// neither block nor panic.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::sync::Arc;
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Fixed, Observer, TrainingEvent};
///
/// #[derive(Debug, Default)]
/// struct Chunks(AtomicUsize);
///
/// impl Observer for Chunks {
///     fn observe(&self, event: &TrainingEvent<'_>) {
///         if let TrainingEvent::MicroBatchEnded { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let chunks = Arc::new(Chunks::default());
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// let mut processor = BatchProcessor::builder(Fixed::new(4)?).observer(chunks.clone()).build();
/// processor.process(&x, |_, _| Ok(()))?;
/// assert_eq!(chunks.0.load(Ordering::Relaxed), 3);
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
///
/// ```
/// use candle_headroom::batch::Task;
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

/// Something that happened while a batch was processed.
///
/// A batch is what one call of [`AdaptiveTrainer::step`](crate::AdaptiveTrainer::step) or
/// [`BatchProcessor::process`](super::BatchProcessor::process) processes. Its number, `step`, is that of [`MicroBatch::step`]
/// and counts within its `task`. Times are host times: on a device that works asynchronously they are the times of queuing,
/// because nothing waits for the device. Without a [`DeviceMemory`](crate::DeviceMemory), all memory fields are `None`.
///
/// ```
/// use candle_headroom::batch::TrainingEvent;
///
/// fn is_trouble(event: &TrainingEvent<'_>) -> bool {
///     matches!(event, TrainingEvent::Exhausted { .. } | TrainingEvent::BatchFailed { .. })
/// }
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum TrainingEvent<'a> {
    /// A batch begins.
    #[non_exhaustive]
    BatchBegan {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// Number of samples; 0 for an update apart from its batches.
        samples: usize,
        /// Memory at the start, in bytes.
        memory: MemoryReading,
    },
    /// A phase of a micro-batch, or the update, begins.
    #[non_exhaustive]
    PhaseBegan {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// The phase.
        phase: Phase,
    },
    /// A phase has ended.
    #[non_exhaustive]
    PhaseEnded {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// The phase.
        phase: Phase,
        /// When it began.
        began: Instant,
        /// Its duration on the host.
        elapsed: Duration,
        /// Memory at its end, in bytes; the peak is the highest use since the micro-batch, or the update, began.
        memory: MemoryReading,
        /// Whether it succeeded.
        succeeded: bool,
    },
    /// A micro-batch is finished.
    #[non_exhaustive]
    MicroBatchEnded {
        /// The purpose of the batch.
        task: Task,
        /// The micro-batch.
        micro: &'a MicroBatch,
        /// Its memory use.
        completed: &'a Completed,
    },
    /// Memory ran out. A [`Happened`](Self::Happened) follows if the work is retried, a [`BatchFailed`](Self::BatchFailed) if
    /// it is not.
    #[non_exhaustive]
    Exhausted {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// What ran out, where and why.
        exhausted: &'a ResourceExhausted,
        /// The policy's plan, if it has one.
        plan: Option<Plan>,
    },
    /// The micro-batch size changed, or work is retried.
    #[non_exhaustive]
    Happened {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// The event.
        event: &'a Event,
        /// The policy's plan, if it has one.
        plan: Option<Plan>,
    },
    /// A batch is finished.
    #[non_exhaustive]
    BatchEnded {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// When it began.
        began: Instant,
        /// Its duration on the host.
        elapsed: Duration,
        /// Sizes of the finished micro-batches, in order.
        sizes: &'a [usize],
        /// Number of micro-batches that did not fit.
        retries: usize,
        /// Number of samples that were computed again.
        recomputed: usize,
        /// The highest use since it began, in bytes.
        peak: Option<u64>,
        /// Memory at its end, in bytes.
        memory: MemoryReading,
        /// Whether parameters were updated; `None` if only the device knows.
        updated: Option<bool>,
        /// The policy's plan, if it has one.
        plan: Option<Plan>,
    },
    /// A batch ended with an error, which is returned to the caller next.
    #[non_exhaustive]
    BatchFailed {
        /// The purpose of the batch.
        task: Task,
        /// The batch's number.
        step: u64,
        /// When it began.
        began: Instant,
        /// The error.
        error: &'a Error,
        /// The policy's plan, if it has one.
        plan: Option<Plan>,
    },
}
