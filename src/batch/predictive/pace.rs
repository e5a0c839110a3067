/// Timings of one cost before it is compared.
const ENOUGH: u32 = 8;
/// Micro-batches of one cost in a row before a smaller one is timed: by then the size has settled.
const STEADY: u32 = 16;
/// A smaller cost whose throughput is not lower by more than this is preferred.
const PLATEAU: f64 = 1.02;
/// Costs so many times larger than those that were timed may be faster.
const WIDER: f64 = 1.5;
/// Micro-batches of one cost in a row before twice as much is timed again, for what was busy then may be idle now; each time
/// that changes nothing, twice as many.
const STALE: u32 = 4096;
/// Costs whose timings are kept.
const TIMINGS: usize = 16;

/// Which of the costs that fit is the fastest: half of the settled one is timed, and half of that, as long as none is
/// slower than the fastest. Later twice as much as was chosen is timed once more: where that is faster, all is timed anew.
///
/// Each cost's shortest time for a unit counts: others on the machine make work slower, never faster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Pace {
    timings: Vec<Timing>,
    /// The cost in use and for how many micro-batches in a row.
    settled: (usize, u32),
    trial: Option<Trial>,
    pub(super) preferred: Option<usize>,
    /// Half of this cost is slower.
    refused: Option<usize>,
    /// The largest cost that was timed for all that.
    pub(super) timed: Option<usize>,
    /// The least that was timed since then, in seconds for each unit of cost.
    fastest: Option<f64>,
    /// How often the choice was confirmed.
    confirmed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Timing {
    cost: usize,
    /// Seconds for each unit of cost.
    best: f64,
    count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    cost: usize,
    against: f64,
    /// Whether it is twice as much as was chosen, and not half of what was used.
    is_larger: bool,
}

impl Pace {
    /// The cost to use where up to `cap` fit.
    pub(super) fn limit(&self, cap: usize) -> usize {
        let chosen = self.trial.map(|trial| trial.cost).or(self.preferred);
        chosen.map_or(cap, |chosen| chosen.min(cap))
    }

    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Goes on with a preference that an earlier run found from costs up to `timed`.
    pub(super) fn resume(preferred: Option<usize>, timed: Option<usize>) -> Self {
        Self {
            preferred,
            refused: preferred,
            timed,
            ..Self::default()
        }
    }

    /// Without a preference `cost` would be used: where that is far larger than what was timed, all is timed anew.
    pub(super) fn follow(&mut self, cost: usize) {
        if self
            .timed
            .is_some_and(|timed| cost as f64 > timed as f64 * WIDER)
        {
            *self = Self::default();
        }
    }

    /// Whether the next micro-batch's time would lead on; one sample costs `each`.
    pub(super) fn wants_time(&self, each: usize) -> bool {
        let (cost, times) = self.settled;
        let times = times.saturating_add(1);
        let is_due = times >= STEADY && self.may_halve(cost, each) || self.is_stale(times);
        self.trial.is_some() || is_due && self.timing(cost).is_none()
    }

    /// A micro-batch of `cost` went well and took `seconds`, where that is known; one sample costs `each`.
    pub(super) fn record(&mut self, cost: usize, seconds: Option<f64>, each: usize) {
        if let Some(seconds) = seconds {
            self.time(cost, seconds / cost as f64);
        }
        let timing = self.timing(cost);
        if let Some(trial) = self.trial {
            let Some(timing) = timing.filter(|_| cost <= trial.cost) else {
                return;
            };
            self.trial = None;
            self.settled = (cost, 0);
            match () {
                () if trial.is_larger && timing.best * PLATEAU < trial.against => {
                    *self = Self::default();
                }
                () if trial.is_larger => self.confirmed = self.confirmed.saturating_add(1),
                () if timing.best <= trial.against * PLATEAU => {
                    self.preferred = Some(trial.cost);
                    self.fastest = Some(trial.against.min(timing.best));
                }
                () => self.refused = Some(trial.cost * 2),
            }
            return;
        }
        match is_near(self.settled.0, cost) {
            true => self.settled.1 = self.settled.1.saturating_add(1),
            false => self.settled = (cost, 1),
        }
        let Some(timing) = timing else {
            return;
        };
        if self.is_stale(self.settled.1) {
            self.try_next(cost.saturating_mul(2), timing.best, true);
        } else if self.settled.1 >= STEADY && self.may_halve(cost, each) {
            let fastest = self.fastest.unwrap_or(timing.best);
            self.try_next(cost / 2, fastest.min(timing.best), false);
            self.timed = self.timed.max(Some(cost));
        }
    }

    fn try_next(&mut self, cost: usize, against: f64, is_larger: bool) {
        self.trial = Some(Trial {
            cost,
            against,
            is_larger,
        });
        // Sizes near it may have been timed while the first ones warmed up, or long ago.
        self.timings.retain(|timing| !is_near(timing.cost, cost));
    }

    /// Whether the choice is to be looked at again after so many micro-batches.
    fn is_stale(&self, times: u32) -> bool {
        let patience = STALE.saturating_mul(1 << self.confirmed.min(16));
        self.preferred.is_some() && times >= patience
    }

    /// Whether half of `cost` may be as fast.
    fn may_halve(&self, cost: usize, each: usize) -> bool {
        let half = cost / 2;
        half >= each && self.refused.is_none_or(|refused| half >= refused)
    }

    /// What is known of a cost that was timed often enough.
    fn timing(&self, cost: usize) -> Option<Timing> {
        let mut timings = self.timings.iter();
        let timing = timings.find(|timing| is_near(timing.cost, cost))?;
        (timing.count >= ENOUGH).then_some(*timing)
    }

    fn time(&mut self, cost: usize, rate: f64) {
        if let Some(timing) = (self.timings.iter_mut()).find(|timing| is_near(timing.cost, cost)) {
            timing.count = timing.count.saturating_add(1);
            timing.best = timing.best.min(rate);
            return;
        }
        if self.timings.len() >= TIMINGS {
            self.timings.remove(0);
        }
        self.timings.push(Timing {
            cost,
            best: rate,
            count: 1,
        });
    }
}

/// Whether two costs are one size, but for uneven parts.
fn is_near(a: usize, b: usize) -> bool {
    a.abs_diff(b) <= a / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is settled on where a unit of cost takes so long.
    fn settle(cap: usize, rate: impl Fn(usize) -> f64) -> (usize, usize) {
        let mut pace = Pace::default();
        let mut changes = 0;
        for _ in 0..1000 {
            let cost = pace.limit(cap);
            pace.record(cost, Some(cost as f64 * rate(cost)), 1);
            changes += usize::from(pace.limit(cap) != cost);
        }
        (pace.limit(cap), changes)
    }

    #[test]
    fn the_smallest_on_the_plateau() {
        // Faster up to 64, flat above.
        let (settled, changes) = settle(512, |cost| 1. / (cost.min(64) as f64));
        assert_eq!(settled, 64);
        assert!(changes <= 5, "{changes}");
        assert_eq!(
            settle(512, |cost| 1. / cost as f64).0,
            512,
            "faster throughout"
        );
        assert_eq!(settle(512, |cost| cost as f64).0, 1, "slower throughout");
    }

    /// Where time is taken only when it is wanted, the same size is found with few waits.
    #[test]
    fn time_is_taken_only_where_it_leads_on() {
        let mut pace = Pace::default();
        let mut waits = 0;
        for _ in 0..1000 {
            let cost = pace.limit(512);
            let seconds = cost as f64 / (cost.min(64) as f64);
            let is_timed = pace.wants_time(1);
            waits += usize::from(is_timed);
            pace.record(cost, is_timed.then_some(seconds), 1);
        }
        assert_eq!(pace.limit(512), 64);
        // 512, 256, 128, 64 and 32, and what tells that one of them is settled.
        assert!((40..=80).contains(&waits), "{waits}");
    }

    #[test]
    fn more_room_is_looked_at_anew() {
        let mut pace = Pace::resume(Some(64), Some(100));
        pace.follow(120);
        assert_eq!(pace.limit(120), 64);
        pace.follow(200);
        assert_eq!(pace.limit(200), 200);
    }

    #[test]
    fn small_losses_do_not_add_up() {
        // Each halving is slower by 1.4 %: one is allowed, two are not.
        let rate = |cost: usize| (cost as f64).powf(-0.02);
        assert_eq!(settle(1024, rate).0, 512);
    }

    #[test]
    fn what_was_found_while_the_machine_was_busy_is_found_anew() {
        let mut pace = Pace::default();
        for index in 0..6000 {
            let cost = pace.limit(256);
            let busy = if index < 40 { 2. } else { 1. };
            pace.record(cost, Some(busy * (cost as f64 + 50.)), 1);
        }
        assert_eq!(pace.limit(256), 256);
    }
}
