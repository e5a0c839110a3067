//! The engine of trainers and of `process_batches`: what one of them has between two batches, and the events that it sends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use candle_core::Device;

use super::event::{Event, EventKind, Observer, Task, TrainingEvent};
use super::measured::Measured;
use super::policy::{BatchPolicy, Extent};
use super::recompute::{Plan, Recompute, Regions};
use super::regions::{KnownRegions, Trial, shape};
use super::speed::Speeds;
use crate::error::{Error, Holding, Result};
use crate::layers;
use crate::memory::DeviceMemory;

/// Cuts batches by a policy, runs the micro-batches and retries those that did not fit, for trainers and `process_batches`.
#[derive(Debug)]
pub(crate) struct Engine {
    /// No other one of this process has it.
    number: u64,
    pub(crate) policy: Box<dyn BatchPolicy>,
    pub(crate) memory: Option<DeviceMemory>,
    pub(crate) device: Device,
    pub(crate) seed: u64,
    /// This process's, if several train together. Ranks draw different numbers.
    pub(crate) rank: Option<usize>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    pub(super) task: Task,
    /// Number of finished batches, for evaluation and processing. A trainer counts those of its updates.
    pub(crate) batches: u64,
    /// The number of the batch in progress, or of the last one.
    pub(super) step: u64,
    pub(crate) recompute: Recompute,
    /// The same for the batch in progress.
    pub(super) way: Recompute,
    /// By the shape of batches.
    trials: HashMap<u32, Trial>,
    pub(super) regions: KnownRegions,
    /// The size of the last micro-batch, in samples, and the bytes that it took.
    pub(crate) measured: Option<(usize, u64)>,
    speeds: Speeds,
}

impl Engine {
    pub(crate) fn new(policy: impl Into<Box<dyn BatchPolicy>>, task: Task) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Relaxed),
            policy: policy.into(),
            memory: None,
            device: Device::Cpu,
            seed: 0,
            rank: None,
            observers: Vec::new(),
            task,
            batches: 0,
            step: 0,
            recompute: match task {
                Task::Training => Recompute::default(),
                // Without a backward pass a region is only run once.
                Task::Evaluation | Task::Processing => Recompute::Always,
            },
            way: Recompute::default(),
            trials: HashMap::new(),
            regions: KnownRegions::default(),
            measured: None,
            speeds: Speeds::default(),
        }
    }

    /// Works on this device, and shows the policy the memory, so that the first size is known.
    pub(crate) fn start(&mut self, device: Device) {
        self.device = device;
        self.way = self.recompute;
        self.policy.set_recompute(self.recompute);
        if let Some(memory) = &self.memory {
            self.policy.prepare(&memory.surroundings());
        }
    }

    /// Runs the work of the batch with the number `step`, and reports it from its beginning to its end. Returns what it took, also
    /// with an error. An update apart from its batches has 0 samples and the number of the last batch.
    pub(crate) fn batch<T, R>(
        &mut self,
        step: u64,
        samples: usize,
        waited: Option<Duration>,
        work: impl FnOnce(&mut Self, &mut Processed<T>) -> Result<R>,
    ) -> (Processed<T>, Result<R>) {
        self.step = step;
        let measured = Measured::begin(self.memory.as_ref());
        self.notify(|| EventKind::BatchBegan {
            samples,
            memory: measured.reading(),
            waited,
        });
        let began = Instant::now();
        let mut processed = Processed {
            waited,
            ..Processed::empty()
        };
        let done = work(self, &mut processed);
        let elapsed = began.elapsed();
        processed.peak = measured.peak();
        if done.is_ok() && processed.retries == 0 {
            self.speeds.note(&processed.sizes, elapsed);
        }
        match &done {
            Ok(_) => self.notify(|| EventKind::BatchEnded {
                began,
                elapsed,
                sizes: &processed.sizes,
                retries: processed.retries,
                samples_retried: processed.samples_retried,
                memory: measured.reading(),
                updated: processed.updated,
            }),
            Err(error) => {
                // An exhaustion in a micro-batch has been reported already.
                if let Error::ResourceExhausted(exhausted) = error
                    && exhausted.micro_batch.is_none()
                {
                    self.notify(|| EventKind::Exhausted(exhausted));
                }
                self.notify(|| EventKind::BatchFailed(error));
            }
        }
        (processed, done)
    }

    /// Returns the policy's plan, and a size that was faster than the last batch's.
    pub(crate) fn plan(&self) -> Option<Plan> {
        Some(Plan {
            faster: self.speeds.faster(),
            ..self.policy.plan()?
        })
    }

    /// Begins a micro-batch of so many samples, or an update with 0, for the memory of layers. `held` is what the training holds.
    pub(crate) fn piece(
        &self,
        samples: usize,
        held: impl FnOnce() -> Vec<Holding>,
    ) -> layers::Guard {
        let work = (self.task, self.step, samples);
        layers::piece(&self.device, self.number, work, held)
    }

    /// Tells observers, if there are any. The event and the policy's plan take time to compute.
    pub(crate) fn notify<'a>(&self, kind: impl FnOnce() -> EventKind<'a>) {
        use EventKind::{BatchBegan, MicroBatchEnded, PhaseBegan, PhaseEnded};
        if self.observers.is_empty() {
            return;
        }
        let kind = kind();
        let plan = match kind {
            BatchBegan { .. } | PhaseBegan(_) | PhaseEnded { .. } | MicroBatchEnded { .. } => None,
            _ => self.plan(),
        };
        let event = TrainingEvent {
            rank: self.rank,
            task: self.task,
            step: self.step,
            plan,
            kind,
        };
        for observer in &self.observers {
            observer.observe(&event);
        }
    }

    pub(crate) fn happened(&self, event: Event, events: &mut Vec<Event>) {
        self.notify(|| EventKind::Happened(&event));
        events.push(event);
    }

    /// Decides about regions for a batch, of whose shape no more is known than was timed.
    pub(super) fn choose_way(&mut self, batch: &Extent) {
        if self.recompute == Recompute::Measured {
            let trial = self.trials.entry(shape(batch)).or_default();
            // Where one sample does not fit otherwise, `Auto` recomputes.
            self.way = match trial.recomputes() {
                true => Recompute::Always,
                false => Recompute::Auto,
            };
            self.policy.set_recompute(self.way);
        }
    }

    /// Notes how long a batch took, if its shape is still compared. This waits for the device.
    pub(super) fn note_way(
        &mut self,
        batch: &Extent,
        took: impl FnOnce() -> Duration,
    ) -> Result<()> {
        let is_chosen = self.way == Recompute::Auto && self.policy.recomputes();
        let is_forced = self.regions.must_recompute || is_chosen;
        let has_regions = self.regions.of(true) != Regions::None;
        if self.recompute == Recompute::Measured && has_regions && !is_forced {
            let trial = self.trials.entry(shape(batch)).or_default();
            if trial.is_open() {
                self.device.synchronize()?;
                let samples = u32::try_from(batch.samples).unwrap_or(u32::MAX);
                trial.note(took() / samples.max(1));
            }
        }
        Ok(())
    }
}

/// The results of [`BatchProcessor::process`](super::BatchProcessor::process).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Fixed};
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// let mut processor = BatchProcessor::builder(Fixed::new(4)?).build();
/// let done = processor.process(&x, |chunk, _| chunk.sum_all()?.to_scalar::<f32>())?;
/// assert_eq!((done.results, done.sizes), (vec![6., 22., 17.], vec![4, 4, 2]));
/// assert_eq!((done.retries, done.peak), (0, None)); // no memory counts
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Processed<T> {
    /// One result for each finished chunk, in the order of the samples.
    pub results: Vec<T>,
    /// Sizes of the chunks, in samples.
    pub sizes: Vec<usize>,
    /// Number of chunks that did not fit and were computed again.
    pub retries: usize,
    /// Number of samples that were computed again.
    pub samples_retried: usize,
    /// Changes of the size, and retries.
    pub events: Vec<Event>,
    /// The highest use of memory, in bytes; `None` if it is not counted.
    pub peak: Option<u64>,
    /// Whether parameters were updated; `None` if only the device knows.
    pub(crate) updated: Option<bool>,
    /// How long the caller waited for the batch; `None` if it came from no loader.
    pub(crate) waited: Option<Duration>,
}

impl<T> Processed<T> {
    /// Of no samples, or of none yet.
    pub(super) fn empty() -> Self {
        Self {
            results: Vec::new(),
            sizes: Vec::new(),
            retries: 0,
            samples_retried: 0,
            events: Vec::new(),
            peak: None,
            updated: Some(false),
            waited: None,
        }
    }
}
