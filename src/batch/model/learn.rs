use super::level::{LEVELS, Level};
use super::memory_model::MemoryModel;

/// Weight of a new observation in the mean of its cost, and in the scatter.
const WEIGHT: f64 = 1. / 8.;
const SCATTER_WEIGHT: f64 = 1. / 32.;
/// An observation that differs from the prediction by this factor contradicts the curve.
const CHANGED: f64 = 1.25;
/// Contradictions in a row that start a new curve: one alone may be a spike.
const CHANGES: usize = 3;

impl MemoryModel {
    /// Whether an observation cannot lie on the curve. It is too high above the line between the two costs around it, but
    /// too low only below what a smaller cost took, because a curve may have steps.
    pub(super) fn contradicts(&self, cost: usize, bytes: u64) -> bool {
        let mut known = self.levels.iter().rev();
        let lower = known.find(|level| level.cost <= cost || level.is_near(cost));
        let is_less = lower.is_some_and(|low| bytes.max(1) as f64 * CHANGED < low.mean as f64);
        let is_more = self.levels.first().zip(self.levels.last());
        let is_more = is_more.is_some_and(|(lowest, top)| {
            let is_known = cost <= top.cost || top.is_near(cost);
            let expected = self.expected(cost.max(lowest.cost));
            is_known && expected.is_some_and(|most| bytes as f64 > most.max(1.) * CHANGED)
        });
        is_less || is_more
    }

    /// Adds an observation within the range of costs seen to the scatter, unless it shows a step.
    pub(super) fn note_scatter(&mut self, cost: usize, bytes: u64) {
        let range = self.levels.first().zip(self.levels.last());
        let is_within = range.is_some_and(|(low, high)| low.cost <= cost && cost <= high.cost);
        if let Some(expected) = self.expected(cost).filter(|_| is_within) {
            let off = (bytes.max(1) as f64 / expected.max(1.) - 1.).abs();
            if off <= CHANGED - 1. {
                self.scatter += ((off - self.scatter()) * SCATTER_WEIGHT) as f32;
            }
        }
    }

    /// Holds back an observation that contradicts the others; once there are enough of them, forgets the others.
    pub(super) fn hold(&mut self, cost: usize, bytes: u64) {
        self.held.push((cost, bytes));
        if self.held.len() < CHANGES {
            return;
        }
        let held = std::mem::take(&mut self.held);
        self.levels.clear();
        (self.scatter, self.slope_holds) = (0., false);
        for (cost, bytes) in held {
            self.insert(cost, bytes);
        }
    }

    /// Adds an observation to the level of its cost, or as a new level in place of the one that was not seen for longest.
    pub(super) fn insert(&mut self, cost: usize, bytes: u64) {
        let seen = self.observed;
        let near = self.levels.iter().position(|level| level.is_near(cost));
        let slope = near.and_then(|index| Some(self.slope_about(self.levels.get(index)?)));
        match near.and_then(|index| self.levels.get_mut(index)) {
            Some(level) => {
                let more = level.cost as f64 - cost as f64;
                let here = bytes as f64 + slope.unwrap_or(0.) * more;
                let mean = level.mean as f64;
                level.mean = (mean + (here - mean) * WEIGHT) as u64;
                level.seen = seen;
            }
            None => self.levels.push(Level {
                cost,
                mean: bytes,
                seen,
            }),
        }
        if self.levels.len() > LEVELS
            && let Some(oldest) = self.levels.iter().map(|level| level.seen).min()
        {
            self.levels.retain(|level| level.seen != oldest);
        }
        self.levels.sort_by_key(|level| level.cost);
    }
}
