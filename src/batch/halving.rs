//! The policy that halves a size that does not fit, and doubles it again: it needs no model of what samples take.

use super::policy::{BatchPolicy, Completed, Extent, Failed, at_least_one, taken};
use crate::error::{MemoryReading, Result};

/// Micro-batches at the smaller size before the larger one is tried again; doubled by each failure of it, up to 1,024.
const PATIENCE: u32 = 32;
const DOUBLINGS: u32 = 5;

/// Halves the size when a micro-batch does not fit, and doubles it when twice as much should fit again.
///
/// Where use and limit are known, it doubles only while twice what the last micro-batch took fits, so that a soft limit is not
/// reached by trying. Activations grow at most in proportion to the samples, so this is on the safe side. Where they are not
/// known, the size that failed is tried again after 32 micro-batches that succeeded, then after 64, and so on up to 1,024.
///
/// Sizes are remembered as [cost](crate::batch::Extent::cost), so that batches of longer samples are cut into smaller micro-batches.
/// Composer's automatic micro-batching halves in the same way; it neither looks ahead nor grows back.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Halving};
///
/// assert_eq!(Halving::default().size(100), 100); // starts with the whole batch
/// assert_eq!(Halving::builder().start(32).at_most(64).build()?.size(100), 32);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Halving {
    /// The largest size to use, as cost; `None` for the whole batch.
    cost: Option<usize>,
    /// The largest size that the caller allows, in samples.
    most: Option<usize>,
    /// The cost of one sample in the present batch; `None` before the first batch, when a cost is a number of samples.
    each: Option<usize>,
    /// The cost that failed last, and the limit that was in force then, in bytes.
    ceiling: Option<(usize, Option<u64>)>,
    /// Micro-batches of the size in use that succeeded since the last change.
    streak: u32,
    /// How often in a row the larger size has failed again.
    repeated: u32,
    /// The cost of the last micro-batch and what it took, in bytes.
    need: Option<(usize, u64)>,
}

/// Options of [`Halving`].
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Halving};
///
/// let policy = Halving::builder().start(8).at_most(64).build()?;
/// assert_eq!((policy.size(100), policy.size(5)), (8, 5));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `build()`"]
pub struct HalvingBuilder(Halving);

impl HalvingBuilder {
    /// Sets the size of the first micro-batch, in samples; the whole batch by default. On the host, where an allocation is never
    /// refused, start with 1.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchPolicy, Halving};
    ///
    /// assert_eq!(Halving::builder().start(1).build()?.size(100), 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn start(mut self, size: usize) -> Self {
        self.0.cost = Some(size);
        self
    }

    /// Sets the largest size, in samples.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchPolicy, Halving};
    ///
    /// assert_eq!(Halving::builder().at_most(64).build()?.size(100), 64);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn at_most(mut self, size: usize) -> Self {
        self.0.most = Some(size);
        self
    }

    /// Creates the policy.
    ///
    /// ```
    /// use candle_headroom::batch::Halving;
    ///
    /// let error = Halving::builder().start(0).build().unwrap_err();
    /// assert_eq!(error.to_string(), "the size of a micro-batch must be at least 1, got 0");
    /// ```
    ///
    /// # Errors
    /// If a size is 0 ([`is_policy`](crate::Error::is_policy)).
    pub fn build(mut self) -> Result<Halving> {
        let sizes = || self.0.cost.into_iter().chain(self.0.most);
        for size in sizes() {
            at_least_one("the size of a micro-batch", size)?;
        }
        self.0.cost = sizes().min();
        Ok(self.0)
    }
}

impl Halving {
    /// Options for a policy that starts with the whole batch.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchPolicy, Halving};
    ///
    /// assert_eq!(Halving::builder().build()?.size(100), 100);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder() -> HalvingBuilder {
        HalvingBuilder(Self::default())
    }

    fn cost_of(&self, samples: usize) -> usize {
        samples.saturating_mul(self.each.unwrap_or(1))
    }

    /// The largest size to use, in samples.
    fn samples(&self) -> usize {
        let each = self.each.unwrap_or(1);
        let size = self.cost.map_or(usize::MAX, |cost| cost / each);
        size.clamp(1, self.most.unwrap_or(usize::MAX))
    }

    /// Whether a cost fits beside what is in use, in proportion to the last micro-batch; true if that is not known.
    fn fits(&self, cost: usize, in_use: Option<u64>, limit: Option<u64>) -> bool {
        let (Some(in_use), Some(limit), Some((measured, took))) = (in_use, limit, self.need) else {
            return true;
        };
        let need = u128::from(took) * cost as u128 / measured.max(1) as u128;
        u128::from(in_use) + need <= u128::from(limit)
    }

    fn shrink(&mut self, failed: usize, limit: Option<u64>, is_passing: bool) {
        let cost = self.cost_of(failed);
        if !is_passing && self.ceiling.is_some_and(|(before, _)| before == cost) {
            self.repeated += 1;
        }
        self.ceiling = Some((cost, limit));
        self.cost = Some(self.cost_of((failed / 2).max(1)));
        self.streak = 0;
    }

    /// Whether the size that failed may be tried again.
    fn may_retry(&self, limit: Option<u64>) -> bool {
        self.ceiling.is_none_or(|(_, before)| {
            let is_raised = before.is_some_and(|before| limit.is_none_or(|limit| limit > before));
            is_raised || self.streak >= PATIENCE << self.repeated.min(DOUBLINGS)
        })
    }
}

impl BatchPolicy for Halving {
    fn size(&self, remaining: usize) -> usize {
        self.samples().min(remaining)
    }

    fn begin(&mut self, batch: &Extent) {
        let each = batch.each();
        if self.each.is_none() {
            self.cost = self.cost.map(|cost| cost.saturating_mul(each));
        }
        self.each = Some(each);
    }

    fn prepare(&mut self, now: &MemoryReading) {
        let Some((measured, _)) = self.need else {
            return;
        };
        let mut size = self.samples().min(measured / self.each.unwrap_or(1));
        while size > 1 && !self.fits(self.cost_of(size), now.in_use, now.limit) {
            self.shrink(size, now.limit, false);
            size = self.samples();
        }
    }

    fn succeeded(&mut self, completed: &Completed) {
        let cost = self.cost_of(completed.size);
        self.need = taken(completed.peak, completed.before).map(|took| (cost, took));
        if completed.is_over_limit() {
            self.shrink(completed.size, completed.limit, false);
            return;
        }
        // A batch's last micro-batch may be smaller and says nothing about the size in use.
        if completed.size < self.samples() {
            return;
        }
        if self.ceiling.is_some_and(|(failed, _)| cost >= failed) {
            self.ceiling = None;
            self.repeated = 0;
        }
        self.streak = self.streak.saturating_add(1);
        let twice = cost.saturating_mul(2);
        if self.fits(twice, completed.before, completed.limit) && self.may_retry(completed.limit) {
            self.cost = Some(self.cost_of(self.samples().saturating_mul(2)));
            self.streak = 0;
        }
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        let limit = failed.exhausted.bytes.limit;
        self.shrink(failed.size, limit, failed.is_passing);
    }
}
