//! The times by which `Recompute::Measured` chooses: of each shape of batches, with regions kept and recomputed in turn.

use std::collections::HashMap;
use std::time::Duration;

use super::policy::Extent;

/// Batches of a shape that are timed, with regions kept and recomputed in turn, twice: the first ones also search their sizes.
const BATCHES: u32 = 4;

/// Batches have the same shape if the costs of their samples have as many binary digits.
pub(super) type ShapeKey = u32;

/// What was timed for [`Recompute::Measured`](super::Recompute::Measured).
#[derive(Debug, Default)]
pub(super) struct Trials(HashMap<ShapeKey, Trial>);

#[derive(Debug, Default)]
struct Trial {
    batches: u32,
    /// The shortest time that a sample took, with regions kept and recomputed.
    shortest: [Option<Duration>; 2],
}

impl Trials {
    pub(super) fn is_open(&self, shape: ShapeKey) -> bool {
        let trial = self.0.get(&shape);
        trial.is_none_or(|trial| trial.batches < BATCHES)
    }

    /// Whether the next batch of this shape recomputes regions.
    pub(super) fn recomputes(&self, shape: ShapeKey) -> bool {
        self.0.get(&shape).is_some_and(|trial| {
            let [kept, recomputed] = trial.shortest;
            match trial.batches < BATCHES {
                true => trial.batches % 2 == 1,
                false => recomputed < kept,
            }
        })
    }

    pub(super) fn note(&mut self, shape: ShapeKey, each: Duration) {
        let trial = self.0.entry(shape).or_default();
        let [kept, recomputed] = &mut trial.shortest;
        let of = match trial.batches % 2 {
            0 => kept,
            _ => recomputed,
        };
        *of = Some(of.map_or(each, |before| before.min(each)));
        trial.batches += 1;
    }
}

/// The shape of a batch.
pub(super) fn shape(batch: &Extent) -> ShapeKey {
    batch.each().ilog2()
}
