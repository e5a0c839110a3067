use serde::Deserialize;

use super::learn::{LEVELS, Level};
use super::memory_model::{MOST_COST, MemoryModel};
use crate::error::PolicyError;

/// A deserialized model, before it was checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    levels: Vec<Level>,
    observed: u64,
    scatter: f32,
    slope_holds: bool,
}

impl TryFrom<Saved> for MemoryModel {
    type Error = PolicyError;

    fn try_from(saved: Saved) -> Result<Self, PolicyError> {
        let (levels, observed) = (saved.levels, saved.observed);
        let is_possible =
            |level: &Level| (1..=MOST_COST).contains(&level.cost) && level.seen <= observed;
        match levels.len() <= LEVELS
            && levels.len() as u64 <= observed
            && levels.iter().all(is_possible)
            && levels.is_sorted_by(|low, high| low.cost < high.cost)
            && (0. ..=1.).contains(&saved.scatter)
        {
            true => Ok(Self {
                levels,
                observed,
                scatter: saved.scatter,
                slope_holds: saved.slope_holds,
                held: Vec::new(),
            }),
            false => Err(PolicyError::Saved("a model that no observations lead to")),
        }
    }
}
