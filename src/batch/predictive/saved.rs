use serde::{Deserialize, Serialize};

use super::regime::Regime;
use super::shapes::{MOST_SHAPES, Shapes};
use crate::batch::MOST_COST;
use crate::error::{PolicyError, Result};

const POLICY: &str = "predictive";
const VERSION: u32 = 2;

/// What a [`Predictive`](super::Predictive) has learned, as it is saved.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    policy: String,
    version: u32,
    /// The last used one last.
    shapes: Vec<Regime>,
}

impl Shapes {
    pub(super) fn to_json(&self) -> Option<String> {
        let shapes = self.others.iter().chain([&self.active]);
        let saved = Saved {
            policy: POLICY.to_owned(),
            version: VERSION,
            shapes: shapes.cloned().collect(),
        };
        serde_json::to_string(&saved).ok()
    }

    pub(super) fn from_json(json: &str) -> Result<Self> {
        let wrong = |what| PolicyError::Saved { what };
        let saved: Saved = serde_json::from_str(json)
            .map_err(|_| wrong("no JSON document with the state of this policy"))?;
        if (saved.policy.as_str(), saved.version) != (POLICY, VERSION) {
            return Err(wrong("the state of another policy or version").into());
        }
        if saved.shapes.len() > MOST_SHAPES {
            return Err(wrong("more than 32 shapes").into());
        }
        let shapes = saved.shapes.into_iter().map(Regime::resumed);
        let shapes = shapes.collect::<Option<Vec<_>>>();
        let mut shapes = shapes.ok_or(wrong("a cost that no batch has"))?;
        let active = shapes.pop().ok_or(wrong("no shape"))?;
        Ok(Self {
            active,
            others: shapes,
            ..Self::new()
        })
    }
}

impl Regime {
    /// Checks what was read.
    fn resumed(mut self) -> Option<Self> {
        let ceiling = self.ceiling.map(|ceiling| ceiling.cost);
        let costs = [
            Some(self.each),
            self.cap,
            ceiling,
            self.pace.preferred,
            self.pace.timed,
        ];
        let mut costs = costs.into_iter().flatten();
        self.pace.resume();
        let can_be = costs.all(|cost| (1..=MOST_COST).contains(&cost)) && self.proven <= MOST_COST;
        can_be.then_some(self)
    }
}
