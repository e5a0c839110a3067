use serde::{Deserialize, Serialize};

use super::ceiling::Ceiling;
use super::room::Room;
use crate::batch::{Failed, MOST_COST, MemoryModel};

/// A larger size is used only if it is larger by more than this fraction (1/256) and by more than twice the scatter: use and
/// peaks vary by as much.
const WORTHWHILE: usize = 256;

/// All that is known about samples of one shape. Sizes are costs: samples times `each`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    /// The cost of one sample in the last batch.
    pub(super) each: usize,
    pub(super) model: MemoryModel,
    /// The largest cost to use; `None` for the whole batch.
    pub(super) cap: Option<usize>,
    /// The largest cost that has succeeded since the last failure below it.
    pub(super) proven: usize,
    pub(super) ceiling: Option<Ceiling>,
    /// More room was found without measurements, and this shape has not failed since.
    pub(super) is_growing: bool,
}

impl Shape {
    pub(super) fn new(each: usize) -> Self {
        Self {
            each,
            ..Self::default()
        }
    }

    /// Returns whether anything was measured, has succeeded or failed.
    pub(super) fn is_known(&self) -> bool {
        self.model.largest_seen().is_some() || self.proven > 0 || self.ceiling.is_some()
    }

    /// Returns whether only trying shows what fits.
    pub(super) fn is_blind(&self, room: Option<Room>) -> bool {
        room.is_none() || self.is_known() && self.model.largest_seen().is_none()
    }

    /// Returns whether a cost that failed is avoided.
    pub(super) fn is_avoiding(&self) -> bool {
        self.ceiling.is_some_and(|ceiling| !ceiling.is_lifted)
    }

    pub(super) fn cost(&self, samples: usize) -> usize {
        samples.max(1).saturating_mul(self.each).min(MOST_COST)
    }

    /// The largest size in use, in samples; `None` for the whole batch.
    pub(super) fn samples(&self) -> Option<usize> {
        Some((self.cap? / self.each).max(1))
    }

    /// A micro-batch succeeded.
    pub(super) fn succeeded(&mut self, cost: usize) {
        self.proven = self.proven.max(cost);
        self.ceiling = self.ceiling.and_then(|ceiling| ceiling.succeeded(cost));
    }

    /// Goes to the size that fits as far as is known: down if the present one does not, up if a larger one does.
    pub(super) fn refit(&mut self, room: Option<Room>) {
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.follow(room.map(|room| room.all));
        }
        let fits = room.and_then(|room| Some((room, room.fits(&self.model, self.each)?)));
        let Some((room, fits)) = fits else { return };
        let cap = self.cap.unwrap_or(usize::MAX);
        // Down only if the likely need and the mean deviation exceed the room: margin and the rest of the scatter lie between
        // the thresholds for down and up, so that the size does not swing.
        let likely = self.model.predict(cap).map(|likely| likely as f64);
        let scatter = self.model.scatter();
        if likely.is_some_and(|likely| likely * (1. + scatter) > room.all as f64) {
            return self.set(cap.min(fits));
        }
        let ceiling = self.ceiling.map(|ceiling| ceiling.allows(cap, self.each));
        let allowed = ceiling.map_or(fits, |most| fits.min(most));
        let varies = (2. * scatter * cap as f64) as usize;
        if allowed.saturating_sub(cap) > varies.max(cap / WORTHWHILE) {
            if let Some(ceiling) = self.ceiling.as_mut().filter(|ceiling| !ceiling.is_lifted) {
                ceiling.streak = 1;
            }
            self.set(allowed);
        }
    }

    /// A micro-batch of this cost did not fit, or went over a soft limit and finished (`failed` is `None` then). It took `took`
    /// bytes, if that is known.
    pub(super) fn exceeded(
        &mut self,
        cost: usize,
        took: Option<u64>,
        room: Option<Room>,
        failed: Option<&Failed<'_>>,
    ) {
        let was_proven = cost <= self.proven;
        if was_proven {
            self.proven = 0;
        }
        // A failure has to be explained by the prediction with something to spare.
        let explained = failed.map_or(cost, |_| cost - cost / 16);
        let bytes = room.map(|room| room.all);
        let is_passing = failed.is_some_and(|failed| failed.is_passing);
        let fits = room.and_then(|room| room.fits(&self.model, self.each));
        let next = match fits {
            Some(fits) if fits < explained => fits,
            _ => {
                self.ceiling = Some(Ceiling::new(cost, bytes, is_passing, self.ceiling));
                match was_proven && room.is_some() {
                    // Where bytes are counted, a cost that has succeeded before exceeds the room by little.
                    true => cost - cost / 8,
                    false => self.proven.max(cost / 2),
                }
            }
        };
        // What it took is the best estimate: a smaller one takes no more for each unit.
        let measured = took.zip(room).filter(|(took, room)| *took > room.all);
        let measured = measured.map_or(usize::MAX, |(took, room)| {
            (cost as f64 * (room.usable as f64 / took as f64)) as usize
        });
        self.set(next.min(measured).min(cost - 1));
    }

    /// Sets the cap to whole samples, at least one, so that what is compared is what runs.
    pub(super) fn set(&mut self, cap: usize) {
        let cap = (cap - cap % self.each).max(self.each);
        self.cap = (cap < MOST_COST).then_some(cap);
    }
}
