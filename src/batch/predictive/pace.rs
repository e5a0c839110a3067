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

/// Chooses the fastest of the costs that fit, since a smaller micro-batch that is as fast leaves memory free: half of the
/// cost in use is tried, and half of that, as long as none is slower than the fastest. Later twice the chosen cost is timed
/// once more; if that is faster, everything is timed again.
///
/// The highest speed counts, because other work on the device makes a micro-batch slower, never faster. Times may arrive late:
/// a trial goes on until enough of them have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pace {
    pub(super) preferred: Option<usize>,
    /// The largest cost that was timed.
    pub(super) timed: Option<usize>,
    /// Half of the preferred cost, or of that in use, is slower.
    is_decided: bool,
    /// The cost in use.
    #[serde(skip)]
    settled: Timing,
    /// Half of it, or twice as much.
    #[serde(skip)]
    trial: Option<Timing>,
    /// How often the choice was confirmed.
    #[serde(skip)]
    confirmed: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Timing {
    cost: usize,
    /// The highest speed, in units of cost per second.
    best: f64,
    /// How many times have arrived.
    count: u32,
    /// Micro-batches in a row.
    lasted: u32,
}

impl Pace {
    /// The cost to use where up to `cap` fit.
    pub(super) fn limit(&self, cap: usize) -> usize {
        let chosen = self.trial.map(|trial| trial.cost).or(self.preferred);
        chosen.map_or(cap, |chosen| chosen.min(cap))
    }

    /// The speed of the settled cost, in units of cost per second, once it was timed often enough.
    pub(super) fn speed(&self) -> Option<f64> {
        (self.settled.count >= ENOUGH).then_some(self.settled.best)
    }

    /// Returns whether the settled cost, with samples of `each`, is the smallest that is as fast.
    pub(super) fn is_decided(&self, each: usize) -> bool {
        self.trial.is_none() && (self.is_decided || self.settled.cost / 2 < each)
    }

    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
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
        let next = self.next(self.settled.lasted.saturating_add(1), each);
        self.trial.is_some() || next.is_some() && self.settled.count < ENOUGH
    }

    /// A micro-batch of `cost` took `seconds`.
    pub(super) fn time(&mut self, cost: usize, seconds: f64) {
        for timing in self.trial.iter_mut().chain([&mut self.settled]) {
            // Whole samples and even parts make some smaller than was meant, and others a little larger.
            if cost <= timing.cost + timing.cost / 4 && timing.cost < cost.saturating_mul(2) {
                timing.best = timing.best.max(cost as f64 / seconds);
                timing.count = timing.count.saturating_add(1);
            }
        }
    }

    /// A micro-batch of `cost` succeeded; one sample costs `each`.
    pub(super) fn succeeded(&mut self, cost: usize, each: usize) {
        if let Some(trial) = &mut self.trial {
            trial.lasted += 1;
            if trial.count >= ENOUGH || trial.lasted >= LOST {
                let trial = *trial;
                self.decide(trial);
            }
            return;
        }
        // Even parts differ by up to a sample, and the first may have been the rest of a batch.
        if self.settled.cost.abs_diff(cost) > (self.settled.cost / 4).max(each) {
            self.settled = Timing {
                cost,
                ..Timing::default()
            };
        }
        self.settled.cost = self.settled.cost.max(cost);
        self.settled.lasted = self.settled.lasted.saturating_add(1);
        if self.settled.count >= ENOUGH {
            let next = self.next(self.settled.lasted, each);
            self.trial = next.map(|cost| Timing {
                cost,
                ..Timing::default()
            });
        }
    }

    /// The cost to try after this many micro-batches of the settled one.
    fn next(&self, lasted: u32, each: usize) -> Option<usize> {
        let Timing { cost, .. } = self.settled;
        let half = cost / 2;
        let may_halve = half >= each && !self.is_decided;
        let stale = STALE.saturating_mul(1 << self.confirmed.min(16));
        match () {
            () if self.preferred.is_some() && lasted >= stale => Some(cost.saturating_mul(2)),
            () if may_halve && lasted >= STEADY => Some(half),
            () => None,
        }
    }

    /// Ends a trial. `settled.best` becomes the highest speed of all costs that were tried, so that small losses do not add up.
    fn decide(&mut self, trial: Timing) {
        self.trial = None;
        self.settled.lasted = 0;
        self.timed = self.timed.max(Some(self.settled.cost));
        let fastest = self.settled.best;
        match trial.cost > self.settled.cost {
            true if trial.best > fastest * PLATEAU => *self = Self::default(),
            true => self.confirmed = self.confirmed.saturating_add(1),
            false if trial.best * PLATEAU >= fastest && trial.count >= ENOUGH => {
                self.preferred = Some(trial.cost);
                self.settled = Timing {
                    best: trial.best.max(fastest),
                    lasted: 0,
                    ..trial
                };
            }
            false => self.is_decided = true,
        }
    }
}
