use serde::{Deserialize, Serialize};

use super::shape::{Room, Shape};
use crate::batch::MOST_COST;
use crate::error::{PolicyError, Result};

/// Number of shapes that are remembered, those used last.
const MOST_SHAPES: usize = 32;
/// Samples have the same shape if their costs differ by less than a factor of 2^(1/8), 9 %.
const OCTAVE: f64 = 8.;
/// The policy and the version that a saved state names.
const SAVED: (&str, u32) = ("predictive", 4);

/// What is known about each shape of samples, since a unit of cost does not take the same in all of them: attention grows with
/// the square of a text's length, so longer samples take more.
#[derive(Debug, Clone)]
pub(super) struct Shapes {
    pub(super) active: Shape,
    /// The last used one last.
    others: Vec<Shape>,
}

/// What a [`Predictive`](super::Predictive) has learned, as it is saved: the active shape is the last one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    policy: String,
    version: u32,
    shapes: Vec<Shape>,
}

impl Default for Shapes {
    fn default() -> Self {
        Self {
            active: Shape::new(1),
            others: Vec::new(),
        }
    }
}

impl Shapes {
    /// Selects the shape of a batch with `samples` samples that cost `each`.
    pub(super) fn select(&mut self, each: usize, samples: usize, room: Option<Room>) {
        if key(self.active.each) != key(each) {
            let known = (self.others.iter()).position(|shape| key(shape.each) == key(each));
            let shape = match known {
                Some(index) => self.others.remove(index),
                None => Shape::new(each),
            };
            let before = std::mem::replace(&mut self.active, shape);
            if before.is_known() {
                self.others.push(before);
            }
            if self.others.len() >= MOST_SHAPES {
                self.others.remove(0);
            }
        }
        self.active.begin(each, samples);
        self.derive(room);
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Shape> {
        self.others.iter_mut().chain([&mut self.active])
    }

    /// The shape of samples that cost `each`, if it is remembered.
    pub(super) fn find(&mut self, each: usize) -> Option<&mut Shape> {
        self.all().find(|shape| key(shape.each) == key(each))
    }

    /// Starts a shape that has not run yet with what the most similar one says.
    pub(super) fn derive(&mut self, room: Option<Room>) {
        if self.active.is_known() {
            return;
        }
        let each = self.active.each;
        let distance = |shape: &&Shape| key(shape.each).abs_diff(key(each));
        let Some(similar) = self.others.iter().min_by_key(distance) else {
            return;
        };
        let fits = room.and_then(|room| similar.fits(room)).or(similar.cap);
        if let Some(fits) = fits {
            // A unit takes at most as many times more as the samples are longer.
            let factor = (each as f64 / similar.each as f64).max(1.);
            self.active.set((fits as f64 / factor) as usize);
        }
    }

    pub(super) fn to_json(&self) -> Option<String> {
        let shapes = self.others.iter().chain([&self.active]);
        let saved = Saved {
            policy: SAVED.0.to_owned(),
            version: SAVED.1,
            shapes: shapes.cloned().collect(),
        };
        serde_json::to_string(&saved).ok()
    }

    pub(super) fn from_json(json: &str) -> Result<Self> {
        let wrong = |what| PolicyError::Saved(what);
        let saved: Saved = serde_json::from_str(json)
            .map_err(|_| wrong("no JSON document with the state of this policy"))?;
        if (saved.policy.as_str(), saved.version) != SAVED {
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

fn key(each: usize) -> u32 {
    ((each.max(1) as f64).log2() * OCTAVE) as u32
}

/// Whether a run can have led to this shape.
fn is_possible(shape: &Shape) -> bool {
    let pace = &shape.pace;
    let ceiling = shape.ceiling.map(|ceiling| ceiling.cost);
    let each = Some(shape.each);
    let costs = [each, shape.cap, ceiling, pace.preferred, pace.timed];
    let mut costs = costs.into_iter().flatten();
    costs.all(|cost| (1..=MOST_COST).contains(&cost)) && shape.proven <= MOST_COST
}
