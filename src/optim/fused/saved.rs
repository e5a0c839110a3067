use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::adjustment::{Adjustment, Counters};
use crate::optim::rule::Rule;
use crate::optim::{GroupOptions, StateDict};

/// The name of the document in a state dict's metadata.
pub const OPTIMIZER: &str = "optimizer";

/// What saved state holds besides tensors, as a JSON document. Whatever is missing stays as it is.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    /// The optimizer's name.
    pub name: Option<String>,
    pub params: BTreeMap<String, f64>,
    pub groups: Option<Vec<GroupOptions>>,
    pub steps: u64,
    pub skipped: u64,
    pub loss_scale: Option<SavedScale>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SavedScale {
    pub scale: f64,
    /// Steps since the scale last changed.
    pub streak: u64,
}

impl Saved {
    pub fn new<R: Rule>(
        rule: &R,
        groups: &[GroupOptions],
        counters: Counters,
        adjustment: &Adjustment,
    ) -> Self {
        let params = rule.hyper_parameters();
        Self {
            name: Some(R::NAME.to_owned()),
            params: params.map(|p| (p.name.to_owned(), p.value)).collect(),
            groups: Some(groups.to_vec()),
            steps: counters.steps,
            skipped: counters.skipped,
            loss_scale: adjustment.loss_scale.map(|_| SavedScale {
                scale: counters.scale,
                streak: counters.streak,
            }),
        }
    }

    /// The document of a state dict, or an empty one if it has none, as PyTorch's files.
    pub fn of(state: &StateDict) -> serde_json::Result<Self> {
        let document = state.metadata.get(OPTIMIZER);
        document.map_or_else(|| Ok(Self::default()), |json| serde_json::from_str(json))
    }
}
