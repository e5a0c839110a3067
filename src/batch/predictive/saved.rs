use serde::{Deserialize, Serialize};

use super::shape::Shape;
use super::shapes::{MOST_SHAPES, Shapes};
use crate::batch::MOST_COST;
use crate::error::{PolicyError, Result};

const POLICY: &str = "predictive";
const VERSION: u32 = 3;

/// What a [`Predictive`](super::Predictive) has learned, as it is saved.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    policy: String,
    version: u32,
    /// The last used one last.
    shapes: Vec<Shape>,
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
        let wrong = |what| PolicyError::Saved(what);
        let saved: Saved = serde_json::from_str(json)
            .map_err(|_| wrong("no JSON document with the state of this policy"))?;
        if (saved.policy.as_str(), saved.version) != (POLICY, VERSION) {
            return Err(wrong("the state of another policy or version").into());
        }
        let mut others = saved.shapes;
        if others.len() > MOST_SHAPES || !others.iter().all(is_possible) {
            return Err(wrong("more than 32 shapes, or one that no batch has").into());
        }
        let active = others.pop().ok_or(wrong("no shape"))?;
        Ok(Self { active, others })
    }
}

/// Whether a run can have led to this shape.
fn is_possible(shape: &Shape) -> bool {
    let pace = &shape.pace;
    let ceiling = shape.ceiling.map(|ceiling| ceiling.cost);
    let each = Some(shape.each);
    let costs = [
        each,
        shape.cap,
        ceiling,
        pace.preferred,
        pace.timed,
        pace.refused,
    ];
    let mut costs = costs.into_iter().flatten();
    costs.all(|cost| (1..=MOST_COST).contains(&cost))
        && shape.proven <= MOST_COST
        && shape.model.is_possible()
        && shape.forward.is_possible()
}
