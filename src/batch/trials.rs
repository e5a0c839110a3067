use std::collections::HashMap;
use std::time::Duration;

use super::engine::Engine;
use super::policy::Extent;
use super::recompute::{Recompute, Regions};
use crate::error::Result;

/// Batches of a shape that are timed, with regions kept and recomputed in turn, twice: the first ones also search their sizes.
const BATCHES: u32 = 4;

/// Batches have the same shape if the costs of their samples have as many binary digits.
type ShapeKey = u32;

/// What was timed for [`Recompute::Measured`].
#[derive(Debug, Default)]
pub(super) struct Trials(HashMap<ShapeKey, Trial>);

#[derive(Debug, Default)]
struct Trial {
    batches: u32,
    /// The shortest time that a sample took, with regions kept and recomputed.
    shortest: [Option<Duration>; 2],
}

impl Trials {
    fn is_open(&self, shape: ShapeKey) -> bool {
        let trial = self.0.get(&shape);
        trial.is_none_or(|trial| trial.batches < BATCHES)
    }

    /// Whether the next batch of this shape recomputes regions.
    fn recomputes(&self, shape: ShapeKey) -> bool {
        self.0.get(&shape).is_some_and(|trial| {
            let [kept, recomputed] = trial.shortest;
            match trial.batches < BATCHES {
                true => trial.batches % 2 == 1,
                false => recomputed < kept,
            }
        })
    }

    fn note(&mut self, shape: ShapeKey, each: Duration) {
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

impl Engine {
    /// Decides about regions for a batch, of whose shape no more is known than was timed.
    pub(super) fn choose_way(&mut self, batch: &Extent) {
        if self.recompute == Recompute::Measured {
            // Where one sample does not fit otherwise, `Auto` recomputes.
            self.way = match self.trials.recomputes(shape(batch)) {
                true => Recompute::Always,
                false => Recompute::Auto,
            };
            self.policy.set_recompute(self.way);
        }
    }

    /// Notes how long a batch took, if its shape is still compared. This waits for the device.
    pub(super) fn note_way(
        &mut self,
        batch: &Extent,
        took: impl FnOnce() -> Duration,
    ) -> Result<()> {
        let (shape, is_forced) = (shape(batch), self.regions.must_recompute);
        let is_forced = is_forced || self.way == Recompute::Auto && self.policy.recomputes();
        let has_regions = self.regions.of(true) != Regions::None;
        let is_compared = self.recompute == Recompute::Measured && self.trials.is_open(shape);
        if is_compared && has_regions && !is_forced {
            self.device.synchronize()?;
            let samples = u32::try_from(batch.samples).unwrap_or(u32::MAX);
            self.trials.note(shape, took() / samples.max(1));
        }
        Ok(())
    }
}

fn shape(batch: &Extent) -> ShapeKey {
    batch.each().ilog2()
}
