use serde::Deserialize;

use super::level::{LEVELS, Level, MOST_COST};
use crate::error::PolicyError;

/// A model as it is read, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unchecked {
    pub(super) levels: Vec<Level>,
    pub(super) observed: u64,
    pub(super) scatter: f32,
    pub(super) slope_holds: bool,
    #[serde(default)]
    pub(super) assumed_base: u64,
}

impl Unchecked {
    /// Sorts the levels, and returns what cannot be true of a model.
    pub(super) fn check(&mut self) -> Result<(), PolicyError> {
        self.levels.sort_by_key(|level| level.cost);
        let Self {
            levels,
            observed,
            scatter,
            ..
        } = self;
        let is_cost = |level: &Level| (1..=MOST_COST).contains(&level.cost);
        let is_seen = |level: &Level| level.seen <= *observed;
        let saved = |what| Err(PolicyError::Saved { what });
        match () {
            () if levels.len() > LEVELS => saved("more than 16 costs"),
            () if !levels.iter().all(is_cost) => saved("a cost of 0, or one that no batch has"),
            () if !levels.iter().all(is_seen) || levels.len() as u64 > *observed => {
                saved("fewer observations than costs")
            }
            () if !(0. ..=1.).contains(scatter) => saved("a scatter outside 0 to 1"),
            () if levels.windows(2).any(|pair| pair[0].cost == pair[1].cost) => {
                saved("the same cost twice")
            }
            () => Ok(()),
        }
    }
}
