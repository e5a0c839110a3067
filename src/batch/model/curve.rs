use super::level::Level;
use super::memory_model::MemoryModel;

/// Mean deviations that an observation may lie above the prediction: about 2.4 standard deviations of a normal distribution.
const DEVIATIONS: f64 = 3.;
/// How many times the largest cost seen may be said to fit; more if only one was seen, because then proportional growth is
/// assumed, which errs on the safe side.
const REACH: usize = 8;
const FIRST_REACH: usize = 16;
/// Fraction that is added to the slope for a cost of twice the largest seen, or more; less for one that is nearer.
const CAUTION: f64 = 0.25;
/// Until the slope has been verified, costs beyond the largest by this fraction are expected in proportion, nearer ones in
/// between.
const NEAR: f64 = 0.125;
/// A cost of this many times the largest seen verifies the slope if the growth is off by at most this fraction.
const FARTHER: f64 = 1.25;
const HOLDS: f64 = 0.1;
/// Growth by no more than this fraction of the whole counts as flat.
const FLAT: f64 = 0.02;
/// Slopes are taken between costs that differ by at least this fraction of the larger one and by this many times the
/// scatter, up to a fifth.
const APART: f64 = 0.02;
const APART_IN_SCATTER: f64 = 10.;
const MOST_APART: f64 = 0.2;
/// The fraction of the room (1/16) that has to be left before more than one sample is tried without evidence.
const LEFT: f64 = 16.;
/// Observations before it is tried with less.
const MANY: u64 = 128;

impl MemoryModel {
    /// The largest cost that may be said to fit.
    pub(super) fn farthest(&self) -> Option<usize> {
        let reach = match self.levels.len() {
            1 => FIRST_REACH,
            _ => REACH,
        };
        Some(self.largest_seen()?.saturating_mul(reach))
    }

    /// The most likely value, in bytes.
    pub(super) fn expected(&self, cost: usize) -> Option<f64> {
        let slope = |top: &Level, _| self.slope_to(top);
        self.curve(cost, |level| level.mean as f64, slope)
    }

    /// The upper bound, in bytes; it does not fall as the cost rises.
    pub(super) fn most(&self, cost: usize) -> Option<f64> {
        let lower = self.levels.iter().take_while(|level| level.cost <= cost);
        let highest = lower.map(|level| level.mean).max().unwrap_or(0);
        let slope = |top: &Level, more: f64| {
            let far = more / top.cost as f64;
            if self.slope_holds {
                return self.steepest(top) * (1. + CAUTION * far.min(1.));
            }
            let near = self.slope_to(top).min(top.proportion());
            near + (top.proportion() - near) * (far / NEAR).min(1.)
        };
        let most = self.curve(cost, |level| level.mean.max(highest) as f64, slope)?;
        Some(most * (1. + DEVIATIONS * self.scatter()))
    }

    /// Linear between the levels; below them by [`slope_below`](Self::slope_below), above them by `slope`, which is given the top
    /// level and how much more the cost is.
    fn curve(
        &self,
        cost: usize,
        value: impl Fn(&Level) -> f64,
        slope: impl Fn(&Level, f64) -> f64,
    ) -> Option<f64> {
        let above = self.levels.iter().find(|level| level.cost >= cost);
        let below = self.levels.iter().rev().find(|level| level.cost <= cost);
        match (below, above) {
            (Some(low), Some(high)) if low.cost < high.cost => {
                let part = (cost - low.cost) as f64 / (high.cost - low.cost) as f64;
                Some(value(low) + (value(high) - value(low)) * part)
            }
            (Some(level), Some(_)) => Some(value(level)),
            (Some(top), None) => {
                let more = (cost - top.cost) as f64;
                // Proportional growth is the maximum: a steeper slope comes from a step between the costs it was taken from.
                let slope = slope(top, more).min(value(top) / top.cost as f64);
                Some(value(top) + slope * more)
            }
            (None, Some(low)) => {
                Some(value(low) - self.slope_below(low) * (low.cost - cost) as f64)
            }
            (None, None) => None,
        }
    }

    /// A cost above the largest seen, up to twice as much, that likely fits by the line through the smaller ones. After one
    /// `unit` alone it is two, if a sixteenth of the room is left or after many observations: one unit may take nearly all
    /// base, and proportional growth would never find room for more.
    pub(in crate::batch) fn next_to_try(&self, bytes: u64, unit: usize) -> Option<usize> {
        let top = self.levels.last()?;
        let left = bytes as f64 - self.most(top.cost)?;
        if left <= 0. {
            return None;
        }
        let is_early = left < bytes as f64 / LEFT && self.observed < MANY;
        let next = match self.levels.len() {
            1 if is_early || self.observed < 2 || top.cost > unit => return None,
            1 => top.cost.saturating_mul(2),
            _ => {
                let more = left / (self.steepest(top) * (1. + CAUTION)).max(1.);
                top.cost.saturating_add(more as usize)
            }
        };
        let next = next.min(top.cost.saturating_mul(2));
        // A little more is not worth the risk.
        (next > top.cost.saturating_add(top.cost / 16)).then_some(next)
    }

    /// Bytes for each unit of cost above the largest seen.
    pub(in crate::batch) fn slope_above(&self) -> Option<f64> {
        Some(self.steepest(self.levels.last()?))
    }

    /// Bytes for each unit of cost below the lowest level, as if half of that level, or the assumed base, were base; less if
    /// the costs above it show a smaller slope.
    fn slope_below(&self, low: &Level) -> f64 {
        let above = self.levels.get(1).into_iter().chain(self.levels.last());
        let above = above.filter(|level| level.cost > low.cost);
        let slopes = above.map(|level| level.slope_from(low).max(0.));
        let growing = low.mean.saturating_sub(self.assumed_base) as f64 / low.cost as f64;
        slopes.fold(growing.min(low.proportion() / 2.), f64::min)
    }

    /// Checks whether the slope so far predicted a larger cost. Small micro-batches may peak elsewhere, or with what is
    /// allocated once.
    pub(super) fn verify(&mut self, cost: usize, bytes: u64) {
        let Some(top) = self.levels.last().copied() else {
            return;
        };
        let Some(expected) = self.expected(cost).map(|bytes| bytes - top.mean as f64) else {
            return;
        };
        if cost as f64 >= top.cost as f64 * FARTHER {
            let more = bytes as f64 - top.mean as f64;
            // A flat stretch says nothing about what follows it.
            let is_flat = expected <= FLAT * top.mean as f64;
            self.slope_holds = !is_flat && (more - expected).abs() <= HOLDS * expected;
        }
    }

    /// Whether more than half of the largest level does not grow with the cost.
    pub(in crate::batch) fn is_mostly_base(&self) -> bool {
        let growing = |top: &Level| self.slope_to(top) * top.cost as f64;
        (self.levels.last()).is_some_and(|top| 2. * growing(top) < top.mean as f64)
    }

    /// Bytes for each unit of cost below a level, from the nearest level that lies well below it; its proportion if there is
    /// none.
    fn slope_to(&self, top: &Level) -> f64 {
        let apart = (APART_IN_SCATTER * self.scatter()).clamp(APART, MOST_APART);
        let mut lower = self.levels.iter().rev();
        let low = lower.find(|low| low.cost as f64 <= (1. - apart) * top.cost as f64);
        low.map_or(top.proportion(), |low| top.slope_from(low).max(0.))
    }

    /// Bytes for each unit of cost around a level.
    pub(super) fn slope_about(&self, level: &Level) -> f64 {
        match self.levels.first() {
            Some(low) if low.cost < level.cost => self.slope_to(level),
            _ => self.slope_below(level),
        }
    }

    /// [`slope_to`](Self::slope_to), or the slope over a longer distance if that is steeper: outliers count for less there.
    fn steepest(&self, top: &Level) -> f64 {
        let mut lower = self.levels.iter().rev();
        let far = lower.find(|low| low.cost <= top.cost / 2);
        let near = self.slope_to(top);
        far.map_or(near, |low| top.slope_from(low).max(near))
    }
}
