use serde::{Deserialize, Serialize};

/// Costs that differ by no more than this fraction (1/64) share a level.
const NEAR: usize = 64;

/// What micro-batches of one cost took, in bytes above what was in use before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Level {
    pub(super) cost: usize,
    pub(super) mean: u64,
    /// When it was last seen, counted in observations of the model.
    pub(super) seen: u64,
}

impl Level {
    pub(super) fn is_near(&self, cost: usize) -> bool {
        self.cost.abs_diff(cost) <= self.cost / NEAR
    }

    /// Bytes for each unit of cost from `low` to this level.
    pub(super) fn slope_from(&self, low: &Self) -> f64 {
        (self.mean as f64 - low.mean as f64) / (self.cost as f64 - low.cost as f64)
    }

    /// Bytes for each unit of cost if there were no base.
    pub(super) fn proportion(&self) -> f64 {
        self.mean as f64 / self.cost as f64
    }
}

/// A deserialized model, before it was checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    pub(super) levels: Vec<Level>,
    pub(super) observed: u64,
    pub(super) scatter: f32,
    pub(super) verified: u8,
    pub(super) held: Vec<(usize, u64)>,
}
