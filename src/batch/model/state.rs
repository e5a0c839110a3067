//! A model as serde sees it, checked when it is read.

use serde::{Deserialize, Serialize};

use super::MemoryModel;
use super::level::Level;
use crate::error::PolicyError;

#[derive(Serialize, Deserialize)]
pub(super) struct State {
    levels: Vec<Level>,
    observed: u64,
    scatter: f64,
    slope_holds: bool,
    #[serde(default)]
    assumed_base: u64,
}

impl From<MemoryModel> for State {
    fn from(model: MemoryModel) -> Self {
        Self {
            levels: model.levels,
            observed: model.observed,
            scatter: model.scatter,
            slope_holds: model.slope_holds,
            assumed_base: model.assumed_base,
        }
    }
}

impl TryFrom<State> for MemoryModel {
    type Error = PolicyError;

    fn try_from(state: State) -> Result<Self, PolicyError> {
        let model = Self {
            levels: state.levels,
            observed: state.observed,
            scatter: state.scatter,
            slope_holds: state.slope_holds,
            assumed_base: state.assumed_base,
            held: Vec::new(),
        };
        model.checked()
    }
}
