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
/// The shortest time for a unit of cost counts, because other work on the device makes a micro-batch slower, never faster.
/// Times may arrive late: a trial goes on until enough of them have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pace {
    pub(super) preferred: Option<usize>,
    /// The largest cost that was timed to find it.
    pub(super) timed: Option<usize>,
    /// Half of this cost is slower.
    pub(super) refused: Option<usize>,
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

#[derive(Debug, Clone, Copy, PartialEq)]
struct Timing {
    cost: usize,
    /// The shortest time, in seconds for each unit of cost.
    best: f64,
    /// How many times have arrived.
    count: u32,
    /// Micro-batches in a row.
    lasted: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Timing {
    fn new(cost: usize) -> Self {
        Self {
            cost,
            best: f64::INFINITY,
            count: 0,
            lasted: 0,
        }
    }

    /// Whether another cost counts as this one: uneven parts of a batch differ a little.
    fn is_near(&self, cost: usize) -> bool {
        self.cost.abs_diff(cost) <= self.cost / 4
    }
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
        // Whole samples and even parts may make a trial smaller than it was meant.
        let ran = |trial: &&mut Timing| cost <= trial.cost && trial.cost < cost.saturating_mul(2);
        let trial = self.trial.as_mut();
        let trial = trial.filter(|trial| trial.is_near(cost) || ran(trial));
        let settled = Some(&mut self.settled).filter(|settled| settled.is_near(cost));
        for timing in trial.into_iter().chain(settled) {
            timing.best = timing.best.min(seconds / cost as f64);
            timing.count = timing.count.saturating_add(1);
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
        match self.settled.is_near(cost) {
            // The first of them may have been the rest of a batch.
            true => self.settled.cost = self.settled.cost.max(cost),
            false => self.settled = Timing::new(cost),
        }
        self.settled.lasted = self.settled.lasted.saturating_add(1);
        if self.settled.count >= ENOUGH {
            self.trial = self.next(self.settled.lasted, each).map(Timing::new);
        }
    }

    /// The cost to try after this many micro-batches of the settled one.
    fn next(&self, lasted: u32, each: usize) -> Option<usize> {
        let Timing { cost, .. } = self.settled;
        let half = cost / 2;
        let may_halve = half >= each && self.refused.is_none_or(|refused| half >= refused);
        let stale = STALE.saturating_mul(1 << self.confirmed.min(16));
        match () {
            () if self.preferred.is_some() && lasted >= stale => Some(cost.saturating_mul(2)),
            () if may_halve && lasted >= STEADY => Some(half),
            () => None,
        }
    }

    /// Ends a trial. `settled.best` becomes the shortest time of all costs that were tried, so that small losses do not add up.
    fn decide(&mut self, trial: Timing) {
        self.trial = None;
        self.settled.lasted = 0;
        let (best, fastest) = (trial.best, self.settled.best);
        match trial.cost > self.settled.cost {
            true if best * PLATEAU < fastest => *self = Self::default(),
            true => self.confirmed = self.confirmed.saturating_add(1),
            false if best <= fastest * PLATEAU && trial.count >= ENOUGH => {
                self.preferred = Some(trial.cost);
                self.timed = self.timed.max(Some(self.settled.cost));
                self.settled = Timing {
                    best: best.min(fastest),
                    lasted: 0,
                    ..trial
                };
            }
            false => self.refused = Some(trial.cost.saturating_mul(2)),
        }
    }
}
