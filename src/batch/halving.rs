use super::policy::{BatchPolicy, Completed, Failed};

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
/// ```
#[derive(Debug, Clone)]
pub struct Halving {
    size: usize,
    /// The size that failed last, and the limit that was in force then.
    ceiling: Option<(usize, Option<u64>)>,
    streak: u32,
    patience: u32,
}

impl Halving {
    /// Starts with the whole batch: for devices that refuse an allocation that does not fit.
    pub fn from_whole_batch() -> Self {
        Self::starting_at(usize::MAX)
    }

    /// Starts with a single sample: for the host, where an allocation is never refused and must not be tried.
    pub fn from_one() -> Self {
        Self::starting_at(1)
    }

    fn starting_at(size: usize) -> Self {
        Self {
            size,
            ceiling: None,
            streak: 0,
            patience: PATIENCE,
        }
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
    let (Some(before), Some(peak), Some(limit)) =
        (completed.before, completed.peak, completed.limit)
    else {
        return true;
    };
    let own = peak.saturating_sub(before);
    peak.saturating_add(own) <= limit
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

    fn succeeded(&mut self, completed: &Completed) {
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
            self.size = self.size.saturating_mul(2);
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
    use std::time::Duration;

    fn completed(size: usize, before: u64, peak: u64, limit: u64) -> Completed {
        Completed {
            size,
            before: Some(before),
            peak: Some(peak),
            limit: Some(limit),
            elapsed: Duration::ZERO,
        }
    }

    fn unknown(size: usize) -> Completed {
        Completed {
            size,
            before: None,
            peak: None,
            limit: None,
            elapsed: Duration::ZERO,
        }
    }

    fn fail(policy: &mut Halving, size: usize) {
        let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Unknown);
        policy.failed(&Failed {
            size,
            exhausted: &exhausted,
        });
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
    fn never_below_one() {
        let mut policy = Halving::from_one();
        fail(&mut policy, 1);
        assert_eq!(policy.size(64), 1);
    }
}
