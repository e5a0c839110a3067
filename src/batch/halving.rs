use super::policy::{BatchPolicy, Completed, Extent, Failed};
use crate::error::{MemoryReading, PolicyError, Result};

/// Micro-batches at the smaller size before the larger one is tried again; doubled by each failure of it.
const PATIENCE: u32 = 32;
const MOST_PATIENCE: u32 = 1024;

/// Halves the size when a micro-batch does not fit, and doubles it when twice as much should fit again.
///
/// If use and limit are known, it doubles only while twice what the last micro-batch took (its peak less what was in use
/// before it) fits, so that a soft limit is not reached by trying. Activations grow at most in proportion to the samples, so
/// this errs on the small side. If they are not known, the size that failed is tried again after 32 micro-batches that went
/// well, then after 64, and so on up to 1,024.
///
/// Sizes are remembered as [cost](crate::batch::Extent::cost), so that batches of longer samples are cut into smaller micro-batches.
///
/// Composer's automatic micro-batching halves in the same way; it neither looks ahead nor grows back.
///
/// ```
/// use candle_headroom::batch::{BatchPolicy, Halving};
///
/// assert_eq!(Halving::from_whole_batch().size(100), 100);
/// assert_eq!(Halving::from_one().size(100), 1);
/// assert_eq!(Halving::builder().start(32).at_most(64).build()?.size(100), 32);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Halving {
    /// The largest size to use, as cost.
    cost: usize,
    /// The same in samples, set by the caller.
    most: usize,
    /// The cost of one sample in the present batch; `None` before the first batch, when costs are samples.
    each: Option<usize>,
    /// The cost that failed last, and the limit that was in force then, in bytes.
    ceiling: Option<(usize, Option<u64>)>,
    streak: u32,
    patience: u32,
    /// The cost of the last micro-batch and what it took, in bytes.
    need: Option<(usize, u64)>,
}

/// Options of [`Halving`].
///
/// ```
/// use candle_headroom::batch::Halving;
///
/// let policy = Halving::builder().start(8).at_most(64).build()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalvingBuilder {
    start: usize,
    most: usize,
}

impl HalvingBuilder {
    /// Sets the size of the first micro-batch, in samples; the whole batch by default.
    pub fn start(mut self, size: usize) -> Self {
        self.start = size;
        self
    }

    /// Sets the largest size, in samples.
    pub fn at_most(mut self, size: usize) -> Self {
        self.most = size;
        self
    }

    /// Creates the policy.
    ///
    /// # Errors
    /// [`PolicyError::Zero`] for a size of 0.
    pub fn build(self) -> Result<Halving> {
        match self.start.min(self.most) {
            0 => {
                let what = "the size of a micro-batch";
                Err(PolicyError::Zero { what }.into())
            }
            size => Ok(Halving {
                most: self.most,
                ..Halving::from_size(size)
            }),
        }
    }
}

impl Halving {
    /// Options for a policy that starts with the whole batch.
    pub fn builder() -> HalvingBuilder {
        HalvingBuilder {
            start: usize::MAX,
            most: usize::MAX,
        }
    }

    /// Starts with the whole batch: for devices that refuse an allocation that does not fit.
    pub fn from_whole_batch() -> Self {
        Self::from_size(usize::MAX)
    }

    /// Starts with one sample: for the host, where an allocation is never refused and must not be tried.
    pub fn from_one() -> Self {
        Self::from_size(1)
    }

    /// Starts with `size` samples, for example those that an earlier run ended with; with 1 if `size` is 0.
    pub fn from_size(size: usize) -> Self {
        Self {
            cost: size.max(1),
            most: usize::MAX,
            each: None,
            ceiling: None,
            streak: 0,
            patience: PATIENCE,
            need: None,
        }
    }

    fn cost_of(&self, samples: usize) -> usize {
        samples.saturating_mul(self.each.unwrap_or(1))
    }

    /// The largest size to use, in samples.
    fn samples(&self) -> usize {
        let size = match self.cost {
            usize::MAX => usize::MAX,
            cost => cost / self.each.unwrap_or(1),
        };
        size.clamp(1, self.most)
    }

    fn shrink(&mut self, failed: usize, limit: Option<u64>, is_passing: bool) {
        let cost = self.cost_of(failed);
        if !is_passing && self.ceiling.is_some_and(|(before, _)| before == cost) {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
        self.ceiling = Some((cost, limit));
        self.cost = self.cost_of((failed / 2).max(1));
        self.streak = 0;
    }

    fn may_double(&self, completed: &Completed) -> bool {
        if !twice_fits(completed) {
            return false;
        }
        match self.ceiling {
            Some((_, limit)) if is_raised(limit, completed.limit) => true,
            Some(_) => self.streak >= self.patience,
            None => true,
        }
    }
}

/// Whether twice the micro-batch would have stayed within the limit; true if that is not known.
fn twice_fits(completed: &Completed) -> bool {
    match (completed.before, own_need(completed), completed.limit) {
        (Some(before), Some(own), Some(limit)) => {
            before.saturating_add(own.saturating_mul(2)) <= limit
        }
        _ => true,
    }
}

fn own_need(completed: &Completed) -> Option<u64> {
    Some(completed.peak?.saturating_sub(completed.before?))
}

fn is_raised(before: Option<u64>, now: Option<u64>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now > before,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

impl BatchPolicy for Halving {
    fn size(&self, remaining: usize) -> usize {
        self.samples().min(remaining)
    }

    fn begin(&mut self, batch: &Extent) {
        let each = batch.each();
        if self.each.is_none() {
            self.cost = self.cost.saturating_mul(each);
        }
        self.each = Some(each);
    }

    fn prepare(&mut self, now: &MemoryReading) {
        let (Some(in_use), Some(limit), Some((measured, own))) = (now.in_use, now.limit, self.need)
        else {
            return;
        };
        let fits = |cost: usize| {
            let need = u128::from(own) * cost as u128 / measured.max(1) as u128;
            u128::from(in_use) + need <= u128::from(limit)
        };
        let each = self.each.unwrap_or(1);
        let size = self.samples().min(measured / each);
        if size > 1 && !fits(self.cost_of(size)) {
            self.shrink(size, Some(limit), false);
            while self.samples() > 1 && !fits(self.cost) {
                self.cost = self.cost_of(self.samples() / 2);
            }
        }
    }

    fn succeeded(&mut self, completed: &Completed) {
        let cost = self.cost_of(completed.size);
        self.need = own_need(completed).map(|own| (cost, own));
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
            self.patience = PATIENCE;
        }
        self.streak = self.streak.saturating_add(1);
        if self.may_double(completed) {
            self.cost = self.cost_of(self.samples().saturating_mul(2).min(self.most));
            self.streak = 0;
        }
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        let limit = failed.exhausted.bytes.limit;
        self.shrink(failed.size, limit, failed.is_passing);
    }
}
