use serde::{Deserialize, Serialize};

use super::ceiling::Ceiling;
use super::pace::Pace;
use super::room::{Room, with_one_part_fewer};
use crate::batch::{Failed, MOST_COST, MemoryModel};

/// A larger size is used only if it is larger by more than this fraction (1/256) and by more than twice the scatter: use and
/// peaks vary by as much.
const WORTHWHILE: usize = 256;
/// A first micro-batch that takes this many times what an earlier run learned belongs to another model.
const ANOTHER: f64 = 2.;

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
    /// The same for a cost that did not leave the margin free, and did not last.
    #[serde(skip)]
    tight: Option<Ceiling>,
    pub(super) pace: Pace,
    /// The cost of the present batch.
    #[serde(skip)]
    batch: usize,
    /// More room was found without measurements, and this shape has not failed since.
    #[serde(skip)]
    pub(super) is_growing: bool,
}

impl Shape {
    pub(super) fn new(each: usize) -> Self {
        Self {
            each,
            ..Self::default()
        }
    }

    /// A batch begins with `samples` samples that cost `each`.
    pub(super) fn begin(&mut self, each: usize, samples: usize) {
        self.each = each;
        self.batch = self.cost(samples);
        self.follow_pace();
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

    /// Returns whether a smaller size is used than fits, because it is as fast, or to time it.
    pub(super) fn is_paced(&self) -> bool {
        let cap = self.cap.unwrap_or(usize::MAX);
        self.pace.limit(cap) < cap
    }

    pub(super) fn cost(&self, samples: usize) -> usize {
        samples.max(1).saturating_mul(self.each).min(MOST_COST)
    }

    /// The largest size in use, in samples; `None` for the whole batch.
    pub(super) fn samples(&self) -> Option<usize> {
        let cost = self.pace.limit(self.cap?);
        Some((cost / self.each).max(1))
    }

    /// Returns whether a micro-batch took so much more than the line says that an earlier run must have learned it from
    /// another model.
    pub(super) fn is_another(&self, cost: usize, took: u64) -> bool {
        let line = self.model.base().zip(self.model.slope());
        let expected = line.map(|(base, slope)| base as f64 + slope * cost as f64);
        expected.is_some_and(|expected| took as f64 > expected * ANOTHER)
    }

    /// The largest cost to use in this room, at least one sample's; `None` if nothing was measured. It leaves the margin free, unless
    /// a little more saves a part.
    pub(super) fn fits(&self, room: Room) -> Option<usize> {
        let fits = room.fits(&self.model, self.each)?;
        let seen = self.model.largest_seen()?;
        let near = seen.saturating_add((seen / 4).max(self.each));
        let fewer = with_one_part_fewer(self.batch / self.each, fits / self.each);
        let fewer = fewer.map(|samples| self.cost(samples)).filter(|cost| {
            let tight = self.tight.as_ref();
            *cost <= near
                && tight.is_none_or(|tight| tight.admits(*cost, fits, self.each))
                && room.is_just_enough(&self.model, *cost)
        });
        Some(fewer.unwrap_or(fits))
    }

    /// A micro-batch succeeded.
    pub(super) fn succeeded(&mut self, cost: usize, room: Option<Room>) {
        self.proven = self.proven.max(cost);
        for ceiling in [&mut self.ceiling, &mut self.tight] {
            *ceiling = ceiling.and_then(|ceiling| ceiling.succeeded(cost));
        }
        self.refit(room);
    }

    /// Goes to the size that fits as far as is known: down if the present one does not, up if a larger one does.
    pub(super) fn refit(&mut self, room: Option<Room>) {
        for ceiling in self.ceiling.iter_mut().chain(&mut self.tight) {
            ceiling.follow(room.map(|room| room.all));
        }
        let Some((room, fits)) = room.and_then(|room| Some((room, self.fits(room)?))) else {
            return;
        };
        let cap = self.cap.unwrap_or(usize::MAX);
        // Down only if the likely need and the mean deviation exceed the room: margin and the rest of the scatter lie between
        // the thresholds for down and up, so that the size does not swing.
        let scatter = self.model.scatter();
        let likely = self.model.predict(cap).map(|likely| likely as f64);
        if likely.is_some_and(|likely| likely * (1. + scatter) > room.all as f64) {
            if cap <= self.proven {
                self.tight = Some(Ceiling::new(cap, Some(room.all), false, self.tight));
            }
            self.set(cap.min(fits));
            return;
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
        if fits.is_some_and(|fits| fits < cost) {
            self.tight = Some(Ceiling::new(cost, bytes, is_passing, self.tight));
        }
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
        self.follow_pace();
    }

    /// Shows the pace the cost that would run if it did not choose one.
    fn follow_pace(&mut self) {
        let parts = self.batch.div_ceil(self.cap.unwrap_or(MOST_COST));
        self.pace.follow(self.batch.div_ceil(parts.max(1)));
    }
}
