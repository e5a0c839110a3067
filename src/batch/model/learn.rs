//! What is kept of observations, and what a new one changes.

use super::{Level, MOST_COST, MemoryModel, Saved};

/// Number of costs that are remembered.
const LEVELS: usize = 16;
/// Weight of a new observation in the mean of its cost, and in the scatter.
const WEIGHT: f64 = 1. / 8.;
const SCATTER_WEIGHT: f64 = 1. / 32.;
/// An observation that differs from the prediction by this factor contradicts the curve.
const CHANGED: f64 = 1.25;
/// Contradictions in a row that start a new curve: one alone may be a spike.
const CHANGES: usize = 3;
/// A cost of this many times the largest seen verifies the slope if the growth is off by at most this fraction.
const FARTHER: f64 = 1.25;
const HOLDS: f64 = 0.1;
/// Growth by no more than this fraction of the whole counts as flat.
const FLAT: f64 = 0.02;

impl MemoryModel {
    /// Adds an observation: a micro-batch of this cost (0 counts as 1) took `bytes` above what was in use before.
    ///
    /// ```
    /// use candle_headroom::batch::MemoryModel;
    ///
    /// let mut model = MemoryModel::new();
    /// model.observe(1, 700); // with what is allocated once
    /// assert_eq!(model.predict(1), Some(700));
    /// model.observe(1, 110);
    /// assert_eq!(model.predict(1), Some(110));
    /// ```
    pub fn observe(&mut self, cost: usize, bytes: u64) {
        let cost = cost.clamp(1, MOST_COST);
        self.observed = self.observed.saturating_add(1);
        if self.observed == 2 {
            self.levels.clear(); // the first one includes what was allocated once
        }
        if self.contradicts(cost, bytes) {
            self.hold(cost, bytes);
            return;
        }
        self.held.clear();
        self.compare(cost, bytes);
        self.insert(cost, bytes);
    }

    /// Counts the first observation too: what is allocated once was measured before.
    pub(in crate::batch) fn count_first(&mut self) {
        self.observed = self.observed.max(1);
    }

    /// The mean relative deviation of observations from predictions.
    pub(in crate::batch) fn scatter(&self) -> f64 {
        self.scatter.into()
    }

    /// Whether an observation cannot lie on the curve. It is too high above the line between the two costs around it, but
    /// too low only below what a smaller cost took, because a curve may have steps.
    fn contradicts(&self, cost: usize, bytes: u64) -> bool {
        let (Some(lowest), Some(top)) = (self.levels.first(), self.levels.last()) else {
            return false;
        };
        let mut known = self.levels.iter().rev();
        let lower = known.find(|level| level.cost <= cost || level.is_near(cost));
        let is_less = lower.is_some_and(|low| bytes.max(1) as f64 * CHANGED < low.mean as f64);
        let is_known = cost <= top.cost || top.is_near(cost);
        // Nothing tells how much of the lowest is base, so a smaller one may take as much.
        let expected = self.expected(cost.max(lowest.cost));
        let is_more = expected.is_some_and(|most| bytes as f64 > most.max(1.) * CHANGED);
        is_less || is_known && is_more
    }

    /// Holds back an observation that contradicts the others; once there are enough of them, forgets the others.
    fn hold(&mut self, cost: usize, bytes: u64) {
        self.held.push((cost, bytes));
        if self.held.len() < CHANGES {
            return;
        }
        self.levels.clear();
        (self.scatter, self.verified) = (0., 0);
        for (cost, bytes) in std::mem::take(&mut self.held) {
            self.insert(cost, bytes);
        }
    }

    /// Compares an observation with what was expected. Within the range of costs seen, or just above it, it shows how much they
    /// scatter; far above it shows whether the slope holds, because small micro-batches may peak elsewhere, or with what is
    /// allocated once. A flat stretch says nothing about what follows it.
    fn compare(&mut self, cost: usize, bytes: u64) {
        let levels = self.levels.first().zip(self.levels.last());
        let Some(((lowest, top), expected)) = levels.zip(self.expected(cost)) else {
            return;
        };
        if (lowest.cost..=top.cost).contains(&cost) || top.is_near(cost) {
            let off = (bytes.max(1) as f64 / expected.max(1.) - 1.).abs();
            self.scatter += ((off - self.scatter()) * SCATTER_WEIGHT) as f32;
        } else if cost as f64 >= top.cost as f64 * FARTHER {
            let before = top.mean as f64;
            let (expected, more) = (expected - before, bytes as f64 - before);
            let is_flat = expected <= FLAT * before;
            let holds = !is_flat && (more - expected).abs() <= HOLDS * expected;
            self.verified = if holds {
                self.verified.saturating_add(1)
            } else {
                0
            };
        }
    }

    /// Adds an observation to the level of its cost, or as a new level in place of the one that was not seen for longest. The
    /// largest level rises to the largest cost.
    fn insert(&mut self, cost: usize, bytes: u64) {
        let seen = self.observed;
        let expected = |cost| self.expected(cost).unwrap_or(0.);
        let is_largest = self.largest_seen().is_some_and(|top| top < cost);
        let mut levels = self.levels.iter().rev();
        let near = levels.find(|level| level.is_near(cost));
        // How much more this cost takes than that of the level.
        let more = near.map(|level| expected(cost) - expected(level.cost));
        let mut levels = self.levels.iter_mut().rev();
        let near = levels.find(|level| level.is_near(cost));
        match near.zip(more) {
            Some((level, more)) => {
                let mut mean = level.mean as f64;
                mean += (bytes as f64 - more - mean) * WEIGHT;
                if is_largest {
                    (level.cost, mean) = (cost, mean + more);
                }
                (level.mean, level.seen) = (mean as u64, seen);
            }
            None => {
                let mean = bytes;
                self.levels.push(Level { cost, mean, seen });
            }
        }
        if self.levels.len() > LEVELS
            && let Some(oldest) = self.levels.iter().skip(1).map(|level| level.seen).min()
        {
            self.levels.retain(|level| level.seen != oldest);
        }
        self.levels.sort_by_key(|level| level.cost);
    }
}

impl TryFrom<Saved> for MemoryModel {
    type Error = &'static str;

    fn try_from(saved: Saved) -> Result<Self, &'static str> {
        let (levels, observed) = (saved.levels, saved.observed);
        let is_possible =
            |level: &Level| (1..=MOST_COST).contains(&level.cost) && level.seen <= observed;
        match levels.len() <= LEVELS
            && levels.len() as u64 <= observed
            && levels.iter().all(is_possible)
            && levels.is_sorted_by(|low, high| low.cost < high.cost)
            && (0. ..=1.).contains(&saved.scatter)
            && saved.held.len() < CHANGES
            && saved
                .held
                .iter()
                .all(|(cost, _)| (1..=MOST_COST).contains(cost))
        {
            true => Ok(Self {
                levels,
                observed,
                scatter: saved.scatter,
                verified: saved.verified,
                held: saved.held,
            }),
            false => Err("a model that no observations lead to"),
        }
    }
}
