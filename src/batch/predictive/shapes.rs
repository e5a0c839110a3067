//! What was learned for each shape of samples, the last 32 of them, and how it is saved. A new shape begins with what the most similar one
//! says.

use serde::{Deserialize, Serialize};

use super::shape::{Choice, Room, Shape};
use crate::batch::MOST_COST;
use crate::batch::policy::not_its_own as wrong;
use crate::error::Result;

/// Number of shapes that are remembered, those used last.
const MOST_SHAPES: usize = 32;
/// Samples have the same shape if their costs differ by less than a factor of 2^(1/8), 9 %.
const OCTAVE: f64 = 8.;
/// The policy and the version that a saved state names.
const SAVED: (&str, u32) = ("predictive", 6);

/// What is known about samples of one shape.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// With marked regions kept, and recomputed.
    pub(super) kept: Shape,
    recomputed: Shape,
    pub(super) choice: Choice,
}

impl Known {
    fn new(each: usize) -> Self {
        Self {
            kept: Shape::new(each),
            recomputed: Shape::new(each),
            choice: Choice::default(),
        }
    }

    fn each(&self) -> usize {
        self.kept.each
    }

    pub(super) fn shape(&self, recomputes: bool) -> &Shape {
        match recomputes {
            true => &self.recomputed,
            false => &self.kept,
        }
    }

    pub(super) fn shape_mut(&mut self, recomputes: bool) -> &mut Shape {
        match recomputes {
            true => &mut self.recomputed,
            false => &mut self.kept,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.kept.is_known() || self.recomputed.is_known()
    }
}

/// What is known about each shape of samples, since a unit of cost does not take the same in all of them: attention grows with
/// the square of a text's length, so longer samples take more.
#[derive(Debug, Clone)]
pub(super) struct Shapes {
    pub(super) active: Known,
    /// The last used one last.
    others: Vec<Known>,
}

/// What tells a state of another policy or version from a damaged one.
#[derive(Deserialize)]
struct Header {
    policy: String,
    version: u32,
}

/// What a [`Predictive`](super::Predictive) has learned, as it is saved: the active shape is the last one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    policy: String,
    version: u32,
    shapes: Vec<Known>,
    progress: Progress,
}

/// The rest of what the next size depends on.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// The model has marked regions.
    pub(super) has_regions: bool,
    /// Micro-batches until a larger size is tried without measurements.
    pub(super) wait: usize,
    /// What limit and device left, in bytes.
    pub(super) room: Option<u64>,
}

impl Default for Shapes {
    fn default() -> Self {
        Self {
            active: Known::new(1),
            others: Vec::new(),
        }
    }
}

impl Shapes {
    /// Selects the shape of a batch whose samples cost `each`.
    pub(super) fn select(&mut self, each: usize) {
        if key(self.active.each()) != key(each) {
            let known = (self.others.iter()).position(|known| key(known.each()) == key(each));
            let known = match known {
                Some(index) => self.others.remove(index),
                None => Known::new(each),
            };
            let before = std::mem::replace(&mut self.active, known);
            if before.is_known() {
                self.others.push(before);
            }
            if self.others.len() >= MOST_SHAPES {
                self.others.remove(0);
            }
        }
        (self.active.kept.each, self.active.recomputed.each) = (each, each);
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Known> {
        self.others.iter_mut().chain([&mut self.active])
    }

    /// Starts a shape that has not run yet with what the most similar one says: for recomputed samples the same kept ones.
    pub(super) fn derive(&mut self, recomputes: bool, room: Option<Room>) {
        if self.active.shape(recomputes).is_known() {
            return;
        }
        let each = self.active.each();
        let distance = |shape: &&Shape| key(shape.each).abs_diff(key(each));
        let others = self.others.iter().map(|known| known.shape(recomputes));
        let kept = recomputes.then_some(&self.active.kept);
        let known = kept
            .into_iter()
            .chain(others)
            .filter(|shape| shape.is_known());
        let Some(similar) = known.min_by_key(distance) else {
            return;
        };
        let fits = room.and_then(|room| room.fits(&similar.model, similar.each));
        let fits = fits.or(similar.cap);
        if let Some(fits) = fits {
            // A unit takes at most as many times more as the samples are longer.
            let factor = (each as f64 / similar.each as f64).max(1.);
            let cap = (fits as f64 / factor) as usize;
            self.active.shape_mut(recomputes).set(cap);
        }
    }

    pub(super) fn to_json(&self, progress: Progress) -> Option<String> {
        let shapes = self.others.iter().chain([&self.active]);
        let saved = Saved {
            policy: SAVED.0.to_owned(),
            version: SAVED.1,
            shapes: shapes.cloned().collect(),
            progress,
        };
        serde_json::to_string(&saved).ok()
    }

    pub(super) fn from_json(json: &str) -> Result<(Self, Progress)> {
        let damaged = |_| wrong("no JSON document with the state of this policy");
        let header: Header = serde_json::from_slice(json.as_bytes()).map_err(damaged)?;
        if (header.policy.as_str(), header.version) != SAVED {
            return Err(wrong("the state of another policy or version"));
        }
        let saved: Saved = serde_json::from_slice(json.as_bytes()).map_err(damaged)?;
        let mut others = saved.shapes;
        let are_possible = |known: &Known| {
            let shapes = [&known.kept, &known.recomputed];
            shapes.into_iter().all(is_possible) && known.kept.each == known.recomputed.each
        };
        if others.len() > MOST_SHAPES || !others.iter().all(are_possible) {
            return Err(wrong("more than 32 shapes, or one that no batch has"));
        }
        let active = others.pop().ok_or(wrong("no shape"))?;
        Ok((Self { active, others }, saved.progress))
    }
}

fn key(each: usize) -> u32 {
    ((each.max(1) as f64).log2() * OCTAVE) as u32
}

/// Whether a run can have led to this shape.
fn is_possible(shape: &Shape) -> bool {
    let ceiling = shape.ceiling.map(|ceiling| ceiling.cost);
    let each = Some(shape.each);
    let costs = [each, shape.cap, ceiling];
    let mut costs = costs.into_iter().flatten();
    costs.all(|cost| (1..=MOST_COST).contains(&cost)) && shape.proven <= MOST_COST
}
