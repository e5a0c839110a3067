//! What decides how many samples a micro-batch has, and the simplest such policy.
//!
//! A policy sees costs and bytes, and is told how attempts ended. It reads no clock and asks no device, so that a test can play a device, and a resumed
//! run with the same readings chooses the same sizes.

use std::fmt::Debug;

use super::Plan;
use super::recompute::{Recompute, Regions};
use crate::error::{Error, MemoryReading, ResourceExhausted, Result, invalid};

/// Decides how large micro-batches are.
///
/// A policy is informed of each micro-batch that finished or failed, and returns the size of the next one. It lives as long
/// as its trainer, so what it learns in one step serves the next. What happens to a failed micro-batch is decided by
/// [the trainer](crate::AdaptiveTrainer).
///
/// The policies of this crate are [`Predictive`](crate::Predictive), [`Halving`](super::Halving) and [`Fixed`](super::Fixed).
/// Those with options have a `builder()`, and a `Default` with every option at its default.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Failed};
///
/// /// Takes nine tenths of a size that did not fit, as Accelerate's `find_executable_batch_size` does.
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
#[allow(unused_variables, reason = "the names are documentation")]
pub trait BatchPolicy: Debug + Send {
    /// Returns the size of the next micro-batch, in samples, with `remaining` samples (at least 1) left in the batch.
    ///
    /// Values outside `1..=remaining` are clamped. The result must not change between calls unless another method was
    /// called in between.
    fn size(&self, remaining: usize) -> usize;

    /// Returns whether the next micro-batch recomputes marked regions. Asked with [`Recompute::Auto`] only.
    ///
    /// The result must not change between calls unless another method was called in between.
    fn recomputes(&self) -> bool {
        false
    }

    /// Called when a trainer is built, with what it was asked to do about marked regions.
    fn set_recompute(&mut self, recompute: Recompute) {}

    /// Called before a batch is cut into micro-batches, and again when it is restarted.
    fn begin(&mut self, batch: &Extent) {}

    /// Called before each micro-batch with the memory in use and the limit. Not called without a
    /// [`DeviceMemory`](crate::DeviceMemory).
    fn prepare(&mut self, now: &MemoryReading) {}

    /// Called after a micro-batch finished.
    fn succeeded(&mut self, completed: &Completed) {}

    /// Called after a micro-batch did not fit. If [`size`](Self::size) then returns as many samples as failed, or more,
    /// the failure is final, unless marked regions were kept and are to be recomputed now.
    fn failed(&mut self, failed: &Failed<'_>);

    /// Returns what the policy has learned and why it uses its size, if it can tell.
    fn plan(&self) -> Option<Plan> {
        None
    }

    /// Returns what the policy has learned, for [`load_state`](Self::load_state) in another run; `None` if it keeps
    /// nothing.
    fn state(&self) -> Option<String> {
        None
    }

    /// Continues from the [`state`](Self::state) of another run.
    ///
    /// # Errors
    /// If `state` is not a state of this policy ([`is_policy`](crate::Error::is_policy)); nothing has changed then.
    fn load_state(&mut self, state: &str) -> Result<()> {
        Err(not_its_own("a policy that keeps no state"))
    }
}

/// The error for a setting that counts something and is 0.
pub(crate) fn at_least_one<N: Default + PartialEq>(what: &str, number: N) -> Result<()> {
    match number == N::default() {
        true => Err(invalid!(Policy, "{what} must be at least 1, got 0")),
        false => Ok(()),
    }
}

/// The error for saved state that holds `what`.
pub(super) fn not_its_own(what: &str) -> Error {
    invalid!(
        Policy,
        "saved state holds {what}: another policy saved it, or it was changed; go on without it"
    )
}

const _: Option<&dyn BatchPolicy> = None; // object-safe

/// Lets a trainer take a policy, or a boxed one, as `impl Into<Box<dyn BatchPolicy>>`.
impl<P: BatchPolicy + 'static> From<P> for Box<dyn BatchPolicy> {
    fn from(policy: P) -> Self {
        Box::new(policy)
    }
}

/// Number of samples in a batch or micro-batch, and their total cost.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::Extent;
///
/// let tokens = Tensor::zeros((8, 128), DType::U32, &Device::Cpu)?; // [samples, tokens]
/// assert_eq!(tokens.extent()?, Extent::new(8, 1024));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Number of samples.
    pub samples: usize,
    /// Total cost, the quantity that memory grows with: see [`Batch::extent`](crate::Batch::extent).
    pub cost: usize,
}

impl Extent {
    /// Creates the extent of `samples` samples that cost `cost` in total.
    ///
    /// ```
    /// use candle_headroom::batch::Extent;
    ///
    /// let texts = Extent::new(8, 1024); // 8 texts with 1,024 tokens
    /// assert_eq!(texts.cost / texts.samples, 128);
    /// ```
    pub fn new(samples: usize, cost: usize) -> Self {
        Self { samples, cost }
    }

    /// The cost of one sample, rounded up; at least 1.
    pub(super) fn each(&self) -> usize {
        self.cost.div_ceil(self.samples.max(1)).max(1)
    }

    /// A micro-batch of `samples` samples of this batch, each at the batch's mean cost.
    pub(super) fn part(&self, samples: usize) -> Self {
        Self::new(samples, self.each().saturating_mul(samples))
    }
}

/// A finished micro-batch. Bytes are `None` where memory is not measured.
///
/// A policy of your own learns from it: `peak − before` is what the samples took.
///
/// ```
/// use candle_headroom::batch::Completed;
///
/// let mut completed = Completed::new(16);
/// (completed.before, completed.peak) = (Some(100 << 20), Some(900 << 20));
/// completed.limit = Some(800 << 20);
/// assert!(completed.is_over_limit()); // possible where a limit is soft
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Completed {
    /// Number of samples.
    pub size: usize,
    /// Bytes in use before it began.
    pub before: Option<u64>,
    /// Peak use while it ran, in bytes.
    pub peak: Option<u64>,
    /// The limit in force, in bytes.
    pub limit: Option<u64>,
    /// What became of marked regions.
    pub regions: Regions,
}

impl Completed {
    /// Creates a micro-batch of `size` samples, with no measurements.
    ///
    /// ```
    /// use candle_headroom::batch::Completed;
    ///
    /// let mut completed = Completed::new(16);
    /// assert_eq!((completed.peak, completed.is_over_limit()), (None, false));
    /// (completed.peak, completed.limit) = (Some(900), Some(800));
    /// assert!(completed.is_over_limit());
    /// ```
    pub fn new(size: usize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// Returns whether the peak exceeded the limit. The work is kept all the same.
    pub fn is_over_limit(&self) -> bool {
        matches!((self.peak, self.limit), (Some(peak), Some(limit)) if peak > limit)
    }
}

/// A micro-batch that did not fit.
///
/// ```
/// use candle_headroom::ResourceExhausted;
/// use candle_headroom::batch::{BatchPolicy, Failed, Halving};
/// use candle_headroom::error::{Cause, Resource};
///
/// // How to test a policy without a device.
/// let mut policy = Halving::builder().start(32).build()?;
/// let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::DeviceFull);
/// policy.failed(&Failed::new(32, &exhausted));
/// assert_eq!(policy.size(100), 16);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Failed<'a> {
    /// Number of samples.
    pub size: usize,
    /// What ran out, in which phase, and why.
    pub exhausted: &'a ResourceExhausted,
    /// Whether the cause may go away by itself: other users held the memory, or it was fragmented. A policy should not
    /// avoid the size for long.
    pub is_passing: bool,
    /// What became of marked regions; `None` also if the first micro-batch failed before it came to one.
    pub regions: Regions,
}

impl<'a> Failed<'a> {
    /// Creates the failure of a micro-batch of `size` samples with `exhausted`, caused by its own size.
    ///
    /// ```
    /// use candle_headroom::ResourceExhausted;
    /// use candle_headroom::batch::{Failed, Regions};
    /// use candle_headroom::error::{Cause, Resource};
    ///
    /// let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
    /// let failed = Failed::new(32, &exhausted);
    /// assert_eq!((failed.size, failed.is_passing, failed.regions), (32, false, Regions::None));
    /// ```
    pub fn new(size: usize, exhausted: &'a ResourceExhausted) -> Self {
        Self {
            size,
            exhausted,
            is_passing: false,
            regions: Regions::None,
        }
    }

    /// Sets [`regions`](Self::regions).
    ///
    /// ```
    /// use candle_headroom::batch::{BatchPolicy, Extent, Failed, Regions};
    /// use candle_headroom::error::{Cause, Resource};
    /// use candle_headroom::{Predictive, ResourceExhausted};
    ///
    /// let mut policy = Predictive::default();
    /// policy.begin(&Extent::new(8, 8));
    /// let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::DeviceFull);
    /// policy.failed(&Failed::new(1, &exhausted).regions(Regions::Kept));
    /// assert!(policy.recomputes()); // one sample did not fit with its activations stored
    /// ```
    pub fn regions(mut self, regions: Regions) -> Self {
        self.regions = regions;
        self
    }

    /// Sets [`is_passing`](Self::is_passing).
    ///
    /// ```
    /// use candle_headroom::ResourceExhausted;
    /// use candle_headroom::batch::Failed;
    /// use candle_headroom::error::{Cause, Resource};
    ///
    /// let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
    /// let failed = Failed::new(32, &exhausted).passing(true); // the other process may end
    /// assert!(failed.is_passing);
    /// ```
    pub fn passing(mut self, is_passing: bool) -> Self {
        self.is_passing = is_passing;
        self
    }
}

/// Bytes that work took above what was in use before it.
pub(super) fn taken(peak: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(peak?.saturating_sub(before?))
}

/// Always uses the same size, and none smaller if it does not fit.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Fixed};
///
/// let policy = Fixed::new(16)?;
/// assert_eq!((policy.size(100), policy.size(5)), (16, 5));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed(usize);

impl Fixed {
    /// Creates the policy for micro-batches of `size` samples.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchPolicy, Fixed};
    ///
    /// assert_eq!(Fixed::new(16)?.size(100), 16);
    /// assert!(Fixed::new(0).unwrap_err().is_policy());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `size` is 0 ([`is_policy`](crate::Error::is_policy)).
    pub fn new(size: usize) -> Result<Self> {
        at_least_one("the size of a micro-batch", size)?;
        Ok(Self(size))
    }

    /// Creates the policy that does not cut batches.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchPolicy, Fixed};
    ///
    /// assert_eq!(Fixed::whole_batch().size(1000), 1000);
    /// ```
    pub fn whole_batch() -> Self {
        Self(usize::MAX)
    }
}

impl BatchPolicy for Fixed {
    fn size(&self, remaining: usize) -> usize {
        self.0.min(remaining)
    }

    fn failed(&mut self, _: &Failed<'_>) {}
}
