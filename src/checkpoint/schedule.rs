//! When a checkpoint is due: by updates, by the clock, and after a failure at growing distances.

use std::time::{Duration, Instant};

/// How often a run is saved of which nothing else was said.
const USUAL: Duration = Duration::from_secs(30 * 60);

/// When the next checkpoint is due.
#[derive(Debug)]
pub(super) struct Schedule {
    every: Option<u64>,
    every_duration: Option<Duration>,
    /// The step from which a checkpoint is due.
    next: u64,
    last: Instant,
    /// After failures: the step from which it is tried again.
    retry: Option<u64>,
    failures: u32,
}

/// A folder that stays full is tried at most every this many steps.
const LONGEST: u64 = 1024;

impl Schedule {
    pub(super) fn new(every: Option<u64>, every_duration: Option<Duration>) -> Self {
        let mut schedule = Self {
            every,
            every_duration: every_duration.or(every.is_none().then_some(USUAL)),
            next: u64::MAX,
            last: Instant::now(),
            retry: None,
            failures: 0,
        };
        schedule.started(0);
        schedule
    }

    pub(super) fn is_due(&self, step: u64) -> bool {
        if let Some(retry) = self.retry {
            return step >= retry;
        }
        let is_late = |time| self.last.elapsed() >= time;
        step >= self.next || self.every_duration.is_some_and(is_late)
    }

    /// The first step at which one may be due.
    pub(super) fn next(&self) -> u64 {
        match self.every_duration {
            Some(_) => 0,
            None => self.retry.unwrap_or(self.next),
        }
    }

    /// A checkpoint of this step was begun, or the run was resumed from it.
    pub(super) fn started(&mut self, step: u64) {
        let next = |every: u64| {
            (step / every.max(1))
                .saturating_add(1)
                .saturating_mul(every)
        };
        self.next = self.every.map_or(u64::MAX, next);
        self.last = Instant::now();
        self.retry = None;
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Tries again at the next step, then after 2, 4, 8, … steps.
    pub(super) fn failed(&mut self, step: u64) {
        let wait = 1u64.checked_shl(self.failures).unwrap_or(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.retry = Some(step.saturating_add(wait.min(LONGEST)));
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, USUAL};

    #[test]
    fn a_run_is_saved_every_30_minutes_unless_told_otherwise() {
        assert_eq!(Schedule::new(None, None).every_duration, Some(USUAL));
        assert_eq!(Schedule::new(Some(u64::MAX), None).every_duration, None);
    }

    #[test]
    fn steps_are_multiples_and_failures_are_tried_again_more_and_more_rarely() {
        let mut schedule = Schedule::new(Some(10), None);
        assert!(!schedule.is_due(9) && schedule.is_due(10) && schedule.is_due(11));
        schedule.started(12);
        assert!(!schedule.is_due(19) && schedule.is_due(20));
        let mut tried = Vec::new();
        for step in 20..60 {
            if schedule.is_due(step) {
                tried.push(step);
                schedule.started(step);
                schedule.failed(step);
            }
        }
        assert_eq!(tried, [20, 21, 23, 27, 35, 51]);
        schedule.started(67);
        schedule.succeeded();
        assert!(!schedule.is_due(69) && schedule.is_due(70));
    }
}
