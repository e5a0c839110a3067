use std::fmt::Debug;
use std::time::Duration;

use super::Plan;
use crate::error::{MemoryReading, PolicyError, ResourceExhausted, Result};

/// Decides how large micro-batches are; [what happens on failure](crate::AdaptiveTrainer) is not its business.
///
/// It is told what each micro-batch took and which ones failed, and answers with a size. It lives as long as its trainer,
/// so what it learns in one step serves the next.
///
/// ```
/// use candle_headroom::{BatchPolicy, Failed};
///
/// /// Takes nine tenths whenever something does not fit, as Accelerate's `find_executable_batch_size` does.
/// #[derive(Debug)]
/// struct NineTenths {
///     size: usize,
/// }
///
/// impl BatchPolicy for NineTenths {
///     fn size(&self, remaining: usize) -> usize {
///         self.size.min(remaining)
///     }
///
///     fn failed(&mut self, failed: &Failed<'_>) {
///         self.size = (failed.size * 9 / 10).max(1);
///     }
/// }
///
/// let policy: Box<dyn BatchPolicy> = Box::new(NineTenths { size: 128 });
/// assert_eq!(policy.size(100), 100);
/// ```
pub trait BatchPolicy: Debug + Send {
    /// The size of the next micro-batch, in samples, with `remaining` samples (at least 1) left of the batch.
    ///
    /// It lies between 1 and `remaining`; anything else ends the step with a [`PolicyError`]. It must not change between
    /// calls unless one of the other methods was called.
    fn size(&self, remaining: usize) -> usize;

    /// A batch is about to be cut, or to be cut anew: what it holds.
    fn begin(&mut self, batch: &Extent) {
        let _ = batch;
    }

    /// A micro-batch is about to begin: what is in use and allowed now. Only called where a memory was given.
    fn prepare(&mut self, now: &MemoryReading) {
        let _ = now;
    }

    /// A micro-batch is finished.
    fn succeeded(&mut self, completed: &Completed) {
        let _ = completed;
    }

    /// A micro-batch did not fit. If [`size`](Self::size) then answers with as much as failed, or more, the failure is
    /// final.
    fn failed(&mut self, failed: &Failed<'_>);

    /// Whether it is worth waiting for a device that works asynchronously, before and after the next micro-batch, so that
    /// [`Completed::elapsed`] says how long that one took.
    fn wants_time(&self) -> bool {
        false
    }

    /// What it believes and why, where it can tell.
    fn plan(&self) -> Option<Plan> {
        None
    }

    /// What it has learned, as words that [`restore`](Self::restore) understands; `None` where there is nothing to keep.
    fn save(&self) -> Option<String> {
        None
    }

    /// Goes on from what another run has learned.
    ///
    /// # Errors
    /// [`PolicyError::Saved`] for words that it has not written; nothing has changed then.
    fn restore(&mut self, saved: &str) -> Result<()> {
        let _ = saved;
        let what = "what another policy has learned";
        Err(PolicyError::Saved { what }.into())
    }
}

const _: Option<&dyn BatchPolicy> = None; // object-safe

impl<P: BatchPolicy + ?Sized> BatchPolicy for Box<P> {
    fn size(&self, remaining: usize) -> usize {
        (**self).size(remaining)
    }

    fn begin(&mut self, batch: &Extent) {
        (**self).begin(batch);
    }

    fn prepare(&mut self, now: &MemoryReading) {
        (**self).prepare(now);
    }

    fn succeeded(&mut self, completed: &Completed) {
        (**self).succeeded(completed);
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        (**self).failed(failed);
    }

    fn wants_time(&self) -> bool {
        (**self).wants_time()
    }

    fn plan(&self) -> Option<Plan> {
        (**self).plan()
    }

    fn save(&self) -> Option<String> {
        (**self).save()
    }

    fn restore(&mut self, saved: &str) -> Result<()> {
        (**self).restore(saved)
    }
}

/// What a batch, or a part of one, holds.
///
/// ```
/// use candle_headroom::{BatchPolicy, Extent, Predictive};
///
/// // What a test of a policy tells it: 64 texts of 128 tokens.
/// let mut policy = Predictive::new();
/// policy.begin(&Extent::new(64, 64 * 128));
/// assert_eq!(policy.size(64), 64); // nothing bounds it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Its samples.
    pub samples: usize,
    /// What memory grows with: see [`Batch::cost`](crate::Batch::cost).
    pub cost: usize,
}

impl Extent {
    /// So many samples that cost so much.
    pub fn new(samples: usize, cost: usize) -> Self {
        Self { samples, cost }
    }

    /// The cost of one sample; at least 1.
    pub(super) fn each(&self) -> usize {
        self.cost.div_ceil(self.samples.max(1)).max(1)
    }
}

/// What a finished micro-batch took. Bytes are `None` where nobody counts.
///
/// ```
/// use candle_headroom::{BatchPolicy, Completed, Halving};
///
/// // What a test of a policy tells it.
/// let mut completed = Completed::new(1);
/// (completed.before, completed.peak, completed.limit) = (Some(100), Some(130), Some(200));
/// let mut policy = Halving::from_one();
/// policy.succeeded(&completed);
/// assert_eq!(policy.size(64), 2);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Completed {
    /// Its samples.
    pub size: usize,
    /// Bytes in use before it began.
    pub before: Option<u64>,
    /// The highest use while it ran, in bytes.
    pub peak: Option<u64>,
    /// The limit in force, in bytes.
    pub limit: Option<u64>,
    /// The highest use until the forward pass was over, in bytes.
    pub forward_peak: Option<u64>,
    /// How long it took; `None` on a device that works asynchronously, where nobody knows without waiting, unless the
    /// policy [asked for that](BatchPolicy::wants_time).
    pub elapsed: Option<Duration>,
}

impl Completed {
    /// A micro-batch of `size` samples of which nothing else is known.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            before: None,
            peak: None,
            limit: None,
            forward_peak: None,
            elapsed: None,
        }
    }

    /// Whether it went over the limit. Its work is kept all the same.
    pub fn is_over_limit(&self) -> bool {
        matches!((self.peak, self.limit), (Some(peak), Some(limit)) if peak > limit)
    }
}

/// A micro-batch that did not fit.
///
/// ```
/// use candle_headroom::{BatchPolicy, Cause, Failed, Halving, Resource, ResourceExhausted};
///
/// let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::DeviceFull);
/// let mut policy = Halving::from_whole_batch();
/// policy.failed(&Failed::new(64, &exhausted));
/// assert_eq!(policy.size(64), 32);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Failed<'a> {
    /// Its samples.
    pub size: usize,
    /// What ran out, when, and why.
    pub exhausted: &'a ResourceExhausted,
}

impl<'a> Failed<'a> {
    /// A micro-batch of `size` samples that failed with `exhausted`.
    pub fn new(size: usize, exhausted: &'a ResourceExhausted) -> Self {
        Self { size, exhausted }
    }
}
