use super::policy::{BatchPolicy, Completed, Failed};
use crate::error::MemoryReading;

/// After a failure, micro-batches at the smaller size before the larger one is tried again; doubled by each failure of it.
const PATIENCE: u32 = 32;
const MOST_PATIENCE: u32 = 1024;

/// Halves when a micro-batch does not fit, and doubles back when it should fit again.
///
/// Where use and limit are known, it doubles only while twice what the last micro-batch needed of its own (its peak less what
/// was in use before it) still fits, so that a soft limit is not reached by trial. Activations grow at most in proportion to
/// the samples, so this errs on the small side. Where nothing is known, the size that failed is tried again after 32
/// micro-batches that went well, later after 64, and so on up to 1,024: pressure that goes is noticed, pressure that stays
/// costs little.
///
/// Halving is what Composer's automatic micro-batching does; it neither looks ahead nor grows back.
///
/// ```
/// use candle_headroom::{BatchPolicy, Halving};
///
/// assert_eq!(Halving::from_whole_batch().size(100), 100);
/// assert_eq!(Halving::from_one().size(100), 1);
/// assert_eq!(Halving::from_size(32).at_most(64).size(100), 32);
/// ```
#[derive(Debug, Clone)]
pub struct Halving {
    size: usize,
    most: usize,
    /// The size that failed last, and the limit that was in force then.
    ceiling: Option<(usize, Option<u64>)>,
    streak: u32,
    patience: u32,
    /// The last full micro-batch's size and what it needed of its own, in bytes.
    need: Option<(usize, u64)>,
}

impl Halving {
    /// Starts with the whole batch: for devices that refuse an allocation that does not fit.
    pub fn from_whole_batch() -> Self {
        Self::from_size(usize::MAX)
    }

    /// Starts with a single sample: for the host, where an allocation is never refused and must not be tried.
    pub fn from_one() -> Self {
        Self::from_size(1)
    }

    /// Starts with `size` samples, for example those that an earlier run ended with; with 1 where `size` is 0.
    pub fn from_size(size: usize) -> Self {
        Self {
            size: size.max(1),
            most: usize::MAX,
            ceiling: None,
            streak: 0,
            patience: PATIENCE,
            need: None,
        }
    }

    /// Never goes above `size` samples; above 1 where `size` is 0.
    pub fn at_most(mut self, size: usize) -> Self {
        self.most = size.max(1);
        self.size = self.size.min(self.most);
        self
    }

    fn shrink(&mut self, failed: usize, limit: Option<u64>) {
        if self.ceiling.is_some_and(|(size, _)| size == failed) {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
        self.ceiling = Some((failed, limit));
        self.size = (failed / 2).max(1);
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

/// Whether twice the micro-batch would have stayed within the limit; true where that is not known.
fn twice_fits(completed: &Completed) -> bool {
    match (own_need(completed), completed.peak, completed.limit) {
        (Some(own), Some(peak), Some(limit)) => peak.saturating_add(own) <= limit,
        _ => true,
    }
}

/// What a micro-batch took above what was in use before it, in bytes.
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
        self.size.min(remaining)
    }

    fn prepare(&mut self, now: &MemoryReading) {
        let (Some(in_use), Some(limit), Some((measured, own))) = (now.in_use, now.limit, self.need)
        else {
            return;
        };
        let each = own.div_ceil(measured as u64);
        let fits = |size: usize| {
            let need = each.saturating_mul(size as u64);
            in_use.saturating_add(need) <= limit
        };
        let size = self.size.min(measured);
        if size > 1 && !fits(size) {
            self.shrink(size, Some(limit));
            while self.size > 1 && !fits(self.size) {
                self.size /= 2;
            }
        }
    }

    fn succeeded(&mut self, completed: &Completed) {
        self.need = own_need(completed).map(|own| (completed.size, own));
        if completed.is_over_limit() {
            self.shrink(completed.size, completed.limit);
            return;
        }
        // A batch's last micro-batch may be smaller and says nothing about the size in use.
        if completed.size < self.size {
            return;
        }
        if self.ceiling.is_some_and(|(size, _)| completed.size >= size) {
            self.ceiling = None;
            self.patience = PATIENCE;
        }
        self.streak = self.streak.saturating_add(1);
        if self.may_double(completed) {
            self.size = self.size.saturating_mul(2).min(self.most);
            self.streak = 0;
        }
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.shrink(failed.size, failed.exhausted.bytes.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Cause, Resource, ResourceExhausted};

    fn completed(size: usize, before: u64, peak: u64, limit: u64) -> Completed {
        Completed {
            before: Some(before),
            peak: Some(peak),
            limit: Some(limit),
            ..Completed::new(size)
        }
    }

    fn unknown(size: usize) -> Completed {
        Completed::new(size)
    }

    fn fail(policy: &mut Halving, size: usize) {
        let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Unknown);
        policy.failed(&Failed::new(size, &exhausted));
    }

    #[test]
    fn doubles_only_while_twice_its_own_need_fits() {
        let mut policy = Halving::from_one();
        // 100 in use before; 10 a sample; a limit of 190 has room for 9 samples, so for 8.
        for expected in [2, 4, 8, 8, 8] {
            let size = policy.size(64);
            policy.succeeded(&completed(size, 100, 100 + 10 * size as u64, 190));
            assert_eq!(policy.size(64), expected);
        }
    }

    #[test]
    fn less_room_is_met_before_it_is_overrun() {
        let mut policy = Halving::from_one();
        for size in [1, 2, 4, 8] {
            policy.succeeded(&completed(size, 100, 100 + 10 * size as u64, 1000));
        }
        assert_eq!(policy.size(64), 16);
        policy.succeeded(&completed(16, 100, 260, 1000));
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(100), Some(1000));
        policy.prepare(&now);
        assert_eq!(policy.size(64), 32, "there is room for 90");
        now.limit = Some(150);
        policy.prepare(&now);
        assert_eq!(policy.size(64), 4, "there is room for 5");
        now.limit = Some(100);
        policy.prepare(&now);
        assert_eq!(policy.size(64), 1);
    }

    #[test]
    fn a_raised_limit_is_used_at_once_and_an_overrun_shrinks() {
        let mut policy = Halving::from_one();
        policy.succeeded(&completed(1, 0, 10, 40));
        policy.succeeded(&completed(2, 0, 50, 40));
        assert_eq!(policy.size(64), 1);
        for _ in 0..10 {
            policy.succeeded(&completed(1, 0, 10, 40));
            assert_eq!(policy.size(64), 1, "2 has failed under this limit");
        }
        policy.succeeded(&completed(1, 0, 10, 400));
        assert_eq!(policy.size(64), 2);
    }

    #[test]
    fn without_numbers_it_grows_back_after_patience_and_waits_longer_each_time() {
        let mut policy = Halving::from_whole_batch();
        fail(&mut policy, 64);
        assert_eq!(policy.size(64), 32);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let mut wait = 0;
            while policy.size(64) == 32 {
                policy.succeeded(&unknown(32));
                wait += 1;
            }
            assert_eq!(policy.size(64), 64);
            waits.push(wait);
            fail(&mut policy, 64);
        }
        assert_eq!(waits, [32, 64, 128, 256, 512, 1024, 1024, 1024]);
    }

    #[test]
    fn never_above_its_cap() {
        let mut policy = Halving::from_size(3).at_most(10);
        for _ in 0..10 {
            policy.succeeded(&unknown(policy.size(64)));
        }
        assert_eq!(policy.size(64), 10);
        assert_eq!(Halving::from_whole_batch().at_most(0).size(64), 1);
    }

    #[test]
    fn never_below_one() {
        let mut policy = Halving::from_one();
        fail(&mut policy, 1);
        assert_eq!(policy.size(64), 1);
    }
}
