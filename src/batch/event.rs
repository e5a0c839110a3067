//! What happens to a batch: the events of a report, and the stream that observers see.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::policy::Completed;
use super::recompute::Plan;
use crate::error::{Cause, Error, MemoryReading, Phase, ResourceExhausted};
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
pub trait Observer: fmt::Debug + Send + Sync {
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
/// assert_eq!(Task::Evaluation.to_string(), "evaluation"); // as files have it
/// ```
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
        self.serialize(f)
    }
}

/// Something that happened while a batch was processed: the samples of one call of
/// [`AdaptiveTrainer::step`](crate::AdaptiveTrainer::step) or [`BatchProcessor::process`](super::BatchProcessor::process).
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// use candle_headroom::batch::{BatchProcessor, Fixed, Observer, Samples, TrainingEvent};
///
/// /// The number of the last batch.
/// #[derive(Debug, Default)]
/// struct Last(AtomicU64);
///
/// impl Observer for Last {
///     fn observe(&self, event: &TrainingEvent<'_>) {
///         self.0.store(event.step, Relaxed);
///     }
/// }
///
/// let last = Arc::new(Last::default());
/// let mut processor = BatchProcessor::builder(Fixed::new(2)?).observer(Arc::clone(&last)).build();
/// for _ in 0..3 {
///     processor.process(&Samples(&[1, 2, 3]), |_, _| Ok(()))?;
/// }
/// assert_eq!(last.0.load(Relaxed), 2); // counted from 0
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use candle_headroom::batch::{BatchProcessor, EventKind, Fixed, Observer, Samples, TrainingEvent};
///
/// /// The sizes of the last batch's micro-batches.
/// #[derive(Debug, Default)]
/// struct Sizes(Mutex<Vec<usize>>);
///
/// impl Observer for Sizes {
///     fn observe(&self, event: &TrainingEvent<'_>) {
///         if let EventKind::BatchEnded { sizes, .. } = event.kind {
///             *self.0.lock().unwrap() = sizes.to_vec();
///         }
///     }
/// }
///
/// let sizes = Arc::new(Sizes::default());
/// let mut processor = BatchProcessor::builder(Fixed::new(2)?).observer(Arc::clone(&sizes)).build();
/// processor.process(&Samples(&[1, 2, 3]), |_, _| Ok(()))?;
/// assert_eq!(*sizes.0.lock().unwrap(), [2, 1]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
        samples_retried: usize,
        /// Memory at its end; the peak is the highest use since it began.
        memory: MemoryReading,
        /// Whether parameters were updated; `None` if only the device knows.
        updated: Option<bool>,
    },
    /// A batch ended with this error, which is returned to the caller next.
    BatchFailed(&'a Error),
}

/// Identifies the samples that a closure works on, and the attempt.
///
/// ```
/// use candle_headroom::batch::{BatchProcessor, Fixed, Samples};
///
/// let mut processor = BatchProcessor::builder(Fixed::new(2)?).build();
/// let data = Samples(&[1, 2, 3]);
/// let seen = processor.process(&data, |_, micro| Ok((micro.index, micro.samples.clone())))?;
/// assert_eq!(seen.results, [(0, 0..2), (1, 2..3)]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::batch::Fixed;
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(2)?).build()?;
    /// let mut samples = 0;
    /// trainer.step(&Tensor::new(&[1f32, 3., 5., 7.], &Device::Cpu)?, |x, micro| {
    ///     if !micro.is_check() {
    ///         samples += micro.samples.len();
    ///     }
    ///     x.broadcast_sub(&w)?.sqr()?.mean_all()
    /// })?;
    /// assert_eq!(samples, 4); // the first batch that is cut is checked too
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn is_check(&self) -> bool {
        self.is_check
    }
}

/// A change of the micro-batch size, a retry, a check, or data that begin elsewhere.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Halving};
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// let mut processor = BatchProcessor::builder(Halving::default()).build();
/// let done = processor.process(&x, |chunk, _| {
///     if chunk.dim(0)? > 5 {
///         candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY") // as on a device with room for 5 samples
///     }
///     Ok(())
/// })?;
/// let shown = "micro-batch 10 → 5: out of memory in forward, the cause is not known";
/// assert_eq!(done.events[0].to_string(), shown);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The policy chose a larger size.
    #[non_exhaustive]
    Grown {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// The policy chose a smaller size without a failure: less room, or a micro-batch over a soft limit, whose work was kept.
    #[non_exhaustive]
    Shrunk {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// Marked [regions](crate::nn::recompute()) are recomputed from now on.
    #[non_exhaustive]
    Recomputing {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// Marked regions are kept from now on.
    #[non_exhaustive]
    Keeping {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// A micro-batch did not fit, and its samples are computed again.
    #[non_exhaustive]
    Retried {
        /// The samples that failed, as positions in the batch.
        samples: Range<usize>,
        /// The size of the next attempt; the same size if the cause may have passed.
        to: usize,
        /// The phase that failed.
        phase: Option<Phase>,
        /// Why it failed.
        cause: Cause,
    },
    /// The update ran out of memory without a change, and is tried once more.
    #[non_exhaustive]
    UpdateRetried {
        /// Why it failed.
        cause: Cause,
    },
    /// The update, which no micro-batch size affects, went over a soft limit.
    #[non_exhaustive]
    OverLimit {
        /// The highest use during the update, in bytes.
        peak: u64,
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The accumulated gradients were lost, so the batch was started again.
    #[non_exhaustive]
    Restarted {
        /// Number of finished samples that are computed again.
        lost: usize,
    },
    /// After a trainer's state was loaded, a loader with [`accept_changed_data`](crate::data::LoaderBuilder::accept_changed_data) began elsewhere
    /// than the saved run stopped: samples come again, or are left out.
    #[non_exhaustive]
    ContinuedElsewhere {
        /// The loader.
        loader: String,
        /// The place of the saved run's next batch; `None` if that run had not read a loader of this name.
        saved: Option<String>,
        /// Where the loader stood before its first batch.
        found: String,
    },
    /// The closure was checked at the end of the first batch that was cut.
    CutChecked(CutCheck),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grown { from, to } => write!(f, "micro-batch {from} → {to}: more fits"),
            Self::Shrunk { from, to } => write!(f, "micro-batch {from} → {to}: less fits"),
            Self::Recomputing { from, to } => {
                write!(f, "micro-batch {from} → {to}: regions are recomputed")
            }
            Self::Keeping { from, to } => write!(f, "micro-batch {from} → {to}: regions are kept"),
            Self::Retried {
                samples,
                to,
                phase,
                cause,
            } => {
                let phase = phase.map_or(String::new(), |phase| format!(" in {phase}"));
                let from = samples.len();
                write!(
                    f,
                    "micro-batch {from} → {to}: out of memory{phase}, {cause}"
                )
            }
            Self::UpdateRetried { cause } => write!(f, "update retried: out of memory, {cause}"),
            Self::OverLimit { peak, limit } => {
                let (peak, limit) = (ByteSize(*peak), ByteSize(*limit));
                write!(f, "the update used {peak} with a limit of {limit}")
            }
            Self::Restarted { lost } => write!(f, "batch restarted: {lost} finished samples lost"),
            Self::ContinuedElsewhere {
                loader,
                saved,
                found,
            } => {
                write!(f, "loader `{loader}` begins at {found}, and the saved run ")?;
                match saved {
                    Some(saved) => write!(f, "stopped before {saved}"),
                    None => f.write_str("had not read it"),
                }
            }
            Self::CutChecked(check) => check.fmt(f),
        }
    }
}

/// What was checked of a closure's loss, and what was found: [`AdaptiveTrainer::check_cut`](crate::AdaptiveTrainer::check_cut).
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::{AdaptiveTrainer, Sgd};
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![w.clone()]).build()?).build()?;
/// let x = Tensor::new(&[1f32, 3., 5., 7.], &Device::Cpu)?;
/// let check = trainer.check_cut(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
/// let shown = "the loss does not depend on the cut, checked on 4 samples";
/// assert_eq!(check.to_string(), shown);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CutCheck {
    /// Number of samples that were computed together, and in two parts.
    pub samples: usize,
    /// What was found.
    pub finding: CutFinding,
}

/// The result of a [`CutCheck`]. A loss that depends on the cut is an error instead:
/// [`DependsOnCut`](crate::error::DependsOnCut).
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::batch::CutFinding;
/// use candle_headroom::{AdaptiveTrainer, Sgd};
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![w.clone()]).build()?).build()?;
/// let one = Tensor::new(&[1f32], &Device::Cpu)?;
/// let check = trainer.check_cut(&one, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
/// let reason = "a single sample cannot be cut".to_owned();
/// assert_eq!(check.finding, CutFinding::Undecided(reason));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CutFinding {
    /// The gradient of all samples is that of the two parts.
    Agrees,
    /// The gradients differ, and the closure changes buffers, as BatchNorm in training does: it normalizes by the samples of a micro-batch,
    /// so its result depends on the cut in every framework.
    ChangesBuffers,
    /// The loss of the same samples differs from call to call: the closure draws random numbers, so nothing could be checked. This
    /// crate's dropout does not count, because it is off in a check.
    Random,
    /// Nothing could be checked, for this reason.
    Undecided(String),
}

impl CutCheck {
    pub(crate) fn new(samples: usize, finding: CutFinding) -> Self {
        Self { samples, finding }
    }

    /// Whether the training differs from that of whole batches.
    pub(crate) fn is_warning(&self) -> bool {
        self.finding == CutFinding::ChangesBuffers
    }
}

impl fmt::Display for CutCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = self.samples;
        let depends = match &self.finding {
            CutFinding::Agrees => "the loss does not depend on the cut",
            CutFinding::ChangesBuffers => {
                "the loss depends on the cut, and buffers change, as with BatchNorm"
            }
            CutFinding::Random => {
                "the loss of the same samples differs from call to call, so that it is not known whether it depends on the cut"
            }
            CutFinding::Undecided(reason) => {
                return write!(f, "not known whether the loss depends on the cut: {reason}");
            }
        };
        write!(f, "{depends}, checked on {samples} samples")
    }
}
