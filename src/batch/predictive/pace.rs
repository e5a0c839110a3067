use serde::{Deserialize, Serialize};

/// Timings of one cost before it is compared.
const ENOUGH: u32 = 8;
/// Micro-batches of one cost in a row before a smaller one is tried: by then the size has settled.
const STEADY: u32 = 16;
/// Micro-batches after which a trial ends whose times have not arrived.
const LOST: u32 = 1024;
/// A smaller cost is preferred if each unit takes at most this many times as long.
const PLATEAU: f64 = 1.02;
/// Costs that exceed those that were timed by this factor may be faster.
const WIDER: f64 = 1.5;
/// Micro-batches of one cost in a row before twice as much is timed again, because a device that was busy then may be idle
/// now; doubled each time that it changes nothing.
const STALE: u32 = 4096;
/// Costs whose timings are kept.
const TIMINGS: usize = 16;

/// Chooses the fastest of the costs that fit, since a smaller micro-batch that is as fast leaves memory free: half of the
/// cost in use is tried, and half of that, as long as none is slower than the fastest. Later twice the chosen cost is timed
/// once more; if that is faster, everything is timed again.
///
/// The shortest time for a unit of cost counts, because other work on the device makes a micro-batch slower, never faster.
/// Times may arrive late: a trial goes on until enough of them have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pace {
    pub(super) preferred: Option<usize>,
    /// The largest cost that was timed to find it.
    pub(super) timed: Option<usize>,
    #[serde(skip)]
    timings: Vec<Timing>,
    /// The cost in use, and for how many micro-batches in a row.
    #[serde(skip)]
    settled: (usize, u32),
    #[serde(skip)]
    trial: Option<Trial>,
    /// Half of this cost is slower.
    #[serde(skip)]
    refused: Option<usize>,
    /// The shortest time that was measured to find `preferred`, in seconds for each unit of cost.
    #[serde(skip)]
    fastest: Option<f64>,
    /// How often the choice was confirmed.
    #[serde(skip)]
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
    /// Whether it is twice the chosen cost, not half of the one in use.
    is_larger: bool,
    /// Micro-batches that it has lasted.
    lasted: u32,
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

    /// Continues with the preference of an earlier run.
    pub(super) fn resume(&mut self) {
        self.refused = self.preferred;
    }

    /// Without a preference `cost` would be used: if that is far above what was timed, everything is timed again.
    pub(super) fn follow(&mut self, cost: usize) {
        let is_wider = |timed: usize| cost as f64 > timed as f64 * WIDER;
        if self.timed.is_some_and(is_wider) {
            *self = Self::default();
        }
    }

    /// Returns whether the time of the next micro-batch is of use; one sample costs `each`.
    pub(super) fn wants_time(&self, each: usize) -> bool {
        let (cost, times) = self.settled;
        let times = times.saturating_add(1);
        let is_due = times >= STEADY && self.may_halve(cost, each) || self.is_stale(times);
        self.trial.is_some() || is_due && self.timing(cost).is_none()
    }

    /// A micro-batch of `cost` took `seconds`.
    pub(super) fn time(&mut self, cost: usize, seconds: f64) {
        let rate = seconds / cost as f64;
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

    /// A micro-batch of `cost` went well; one sample costs `each`.
    pub(super) fn succeeded(&mut self, cost: usize, each: usize) {
        let timing = self.timing(cost);
        if let Some(trial) = &mut self.trial {
            trial.lasted += 1;
            let trial = *trial;
            match timing.filter(|_| cost <= trial.cost) {
                Some(timing) => self.decide(trial, timing.best),
                None if trial.lasted < LOST => return,
                None => self.refused = Some(trial.cost.saturating_mul(2)),
            }
            if self.trial.take().is_some() {
                self.settled = (cost, 0);
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

    /// A trial was timed: a unit of cost took `best` seconds.
    fn decide(&mut self, trial: Trial, best: f64) {
        match () {
            () if trial.is_larger && best * PLATEAU < trial.against => *self = Self::default(),
            () if trial.is_larger => self.confirmed = self.confirmed.saturating_add(1),
            () if best <= trial.against * PLATEAU => {
                self.preferred = Some(trial.cost);
                self.fastest = Some(trial.against.min(best));
            }
            () => self.refused = Some(trial.cost * 2),
        }
    }

    fn try_next(&mut self, cost: usize, against: f64, is_larger: bool) {
        self.trial = Some(Trial {
            cost,
            against,
            is_larger,
            lasted: 0,
        });
        // Sizes near it may have been timed while the first ones warmed up, or long ago.
        self.timings.retain(|timing| !is_near(timing.cost, cost));
    }

    /// Whether the choice is reconsidered after this many micro-batches.
    fn is_stale(&self, times: u32) -> bool {
        let patience = STALE.saturating_mul(1 << self.confirmed.min(16));
        self.preferred.is_some() && times >= patience
    }

    /// Whether half of `cost` may be as fast.
    fn may_halve(&self, cost: usize, each: usize) -> bool {
        let half = cost / 2;
        half >= each && self.refused.is_none_or(|refused| half >= refused)
    }

    /// The timing of a cost that was timed often enough.
    fn timing(&self, cost: usize) -> Option<Timing> {
        let mut timings = self.timings.iter();
        let timing = timings.find(|timing| is_near(timing.cost, cost))?;
        (timing.count >= ENOUGH).then_some(*timing)
    }
}

/// Whether two costs count as one size: uneven parts of a batch differ a little.
fn is_near(a: usize, b: usize) -> bool {
    a.abs_diff(b) <= a / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One micro-batch of `cost`, with its time.
    fn run(pace: &mut Pace, cost: usize, seconds: f64) {
        pace.time(cost, seconds);
        pace.succeeded(cost, 1);
    }

    /// The cost that is settled on where a unit takes `rate(cost)`, and how often it changed on the way.
    fn settle(cap: usize, rate: impl Fn(usize) -> f64) -> (usize, usize) {
        let mut pace = Pace::default();
        let mut changes = 0;
        for _ in 0..1000 {
            let cost = pace.limit(cap);
            run(&mut pace, cost, cost as f64 * rate(cost));
            changes += usize::from(pace.limit(cap) != cost);
        }
        (pace.limit(cap), changes)
    }

    #[test]
    fn the_smallest_on_the_plateau_is_chosen() {
        // Faster up to 64, flat above.
        let (settled, changes) = settle(512, |cost| 1. / (cost.min(64) as f64));
        assert_eq!(settled, 64);
        assert!(changes <= 5, "{changes}");
        let (settled, _) = settle(512, |cost| 1. / cost as f64);
        assert_eq!(settled, 512, "faster throughout");
        let (settled, _) = settle(512, |cost| cost as f64);
        assert_eq!(settled, 1, "slower throughout");
    }

    #[test]
    fn few_micro_batches_have_to_be_timed_however_late_times_arrive() {
        for late in [0, 1, 7, 100] {
            let mut pace = Pace::default();
            let mut times = std::collections::VecDeque::new();
            let mut asked = 0;
            for index in 0..3000 {
                let cost = pace.limit(512);
                if pace.wants_time(1) {
                    times.push_back((index + late, cost));
                    asked += 1;
                }
                while times.front().is_some_and(|(when, _)| *when <= index) {
                    let (_, cost) = times.pop_front().unwrap();
                    pace.time(cost, cost as f64 / (cost.min(64) as f64));
                }
                pace.succeeded(cost, 1);
            }
            assert_eq!(pace.limit(512), 64);
            // 512, 256, 128, 64 and 32, and those that were on their way.
            assert!((40..=80 + 5 * late).contains(&asked), "{late} {asked}");
        }
    }

    #[test]
    fn a_trial_whose_times_are_lost_ends() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            run(&mut pace, 512, 1.);
        }
        assert_eq!(pace.limit(512), 256);
        for _ in 0..=LOST {
            pace.succeeded(256, 1);
        }
        assert_eq!(pace.limit(512), 512);
    }

    #[test]
    fn all_is_timed_again_where_much_more_fits() {
        let mut pace = Pace {
            preferred: Some(64),
            timed: Some(100),
            ..Pace::default()
        };
        pace.resume();
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
    fn a_choice_made_on_a_busy_device_is_reconsidered() {
        let mut pace = Pace::default();
        for index in 0..6000 {
            let cost = pace.limit(256);
            let busy = if index < 40 { 2. } else { 1. };
            run(&mut pace, cost, busy * (cost as f64 + 50.));
        }
        assert_eq!(pace.limit(256), 256);
    }
}
