/// What a new observation weighs in the mean.
const WEIGHT: f64 = 0.125;
/// Costs that differ by no more than one part in so many are the same level.
const NEAR: usize = 64;

/// What micro-batches of one cost took, in bytes above what was in use before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Level {
    pub(super) cost: usize,
    pub(super) mean: u64,
    /// When it was last seen, in observations of the model.
    pub(super) seen: u64,
}

impl Level {
    pub(super) fn is_near(&self, cost: usize) -> bool {
        self.cost.abs_diff(cost) <= self.cost / NEAR
    }

    pub(super) fn observe(&mut self, cost: usize, bytes: u64, now: u64) {
        let mean = self.mean as f64;
        *self = Self {
            // The smaller of two that are taken for one, so that neither is underestimated.
            cost: self.cost.min(cost),
            mean: (mean + (bytes as f64 - mean) * WEIGHT) as u64,
            seen: now,
        };
    }

    /// Bytes for each unit of cost from `low` to this one.
    pub(super) fn slope_from(&self, low: &Self) -> f64 {
        (self.mean as f64 - low.mean as f64) / (self.cost as f64 - low.cost as f64)
    }

    /// Bytes for each unit of cost if there were no base.
    pub(super) fn proportion(&self) -> f64 {
        self.mean as f64 / self.cost as f64
    }
}
