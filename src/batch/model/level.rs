/// What a new observation weighs in the mean.
const WEIGHT: f64 = 0.125;
/// Costs that differ by no more than one part in so many are the same level.
const NEAR: usize = 64;

/// What micro-batches of one cost took, in bytes above what was in use before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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

    /// Learns what a cost near this one took, where each unit takes `slope`.
    pub(super) fn observe(&mut self, cost: usize, bytes: u64, slope: f64, now: u64) {
        let here = bytes as f64 + slope * (self.cost as f64 - cost as f64);
        let mean = self.mean as f64;
        self.mean = (mean + (here - mean) * WEIGHT) as u64;
        self.seen = now;
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
