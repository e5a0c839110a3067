//! The size of micro-batches for samples of one shape: up where a larger one fits with a margin, down where the present one no longer does, and
//! away from one that has failed until there is more room.

use serde::{Deserialize, Serialize};

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

/// What a micro-batch may take, in bytes above what is in use before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// All that limit and device leave.
    pub(super) all: u64,
    /// `all` less the margin.
    pub(super) usable: u64,
}

impl Room {
    pub(super) fn new(all: u64, margin: f64) -> Self {
        let usable = (all as f64 * (1. - margin)) as u64;
        Self { all, usable }
    }

    /// The largest cost that leaves the margin free, at least one sample's; `None` if nothing was measured. If what is certain
    /// does not lead on, a larger one that likely fits.
    pub(super) fn fits(&self, model: &MemoryModel, each: usize) -> Option<usize> {
        let seen = model.largest_seen()?;
        let certain = model.largest_within(self.all, self.usable);
        let certain = certain.unwrap_or(0).max(each);
        Some(match certain < seen.saturating_add((seen / 4).max(each)) {
            true => certain.max(model.next_to_try(self.usable, each).unwrap_or(0)),
            false => certain,
        })
    }
}

/// Micro-batches that have to succeed before a cost that failed is tried again, and where other users of the memory were the
/// cause.
const PATIENCE: u32 = 128;
const PASSING: u32 = 16;
const MOST: u32 = 1 << 15;
/// A failure that follows another is remembered this many times as long.
const AGAIN: u32 = 4;

/// A cost that did not fit although the model said that it would. It is avoided until there is more room or for a while:
/// without that the model would lead to the same failure in each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ceiling {
    pub(super) cost: usize,
    /// The room when it failed, in bytes.
    room: Option<u64>,
    /// Micro-batches that have succeeded since the failure, plus one if the cost has been tried again.
    pub(super) streak: u32,
    patience: u32,
    /// The cost may be used, because there is more room or it has succeeded. It is still remembered, so that another failure
    /// counts as one more in a row: without that, room that varies costs a failure at each upswing.
    pub(super) is_lifted: bool,
}

impl Ceiling {
    /// Creates the ceiling for a failure at `cost`; `before` is the one that it replaces.
    pub(super) fn new(
        cost: usize,
        room: Option<u64>,
        is_passing: bool,
        before: Option<Self>,
    ) -> Self {
        // Failures on the way down to what fits count as one.
        let again = before.map_or(0, |before| match before.streak {
            0 => before.patience,
            _ => before.patience.saturating_mul(AGAIN),
        });
        let (least, most) = match is_passing {
            true => (PASSING, PATIENCE),
            false => (PATIENCE, MOST),
        };
        Self {
            cost,
            room,
            streak: 0,
            patience: again.clamp(least, most),
            is_lifted: false,
        }
    }

    /// Lifts the ceiling if there is more room than at the failure, by more than use varies: a sixteenth.
    pub(super) fn follow(&mut self, room: Option<u64>) {
        let is_raised =
            |before: u64| room.is_none_or(|now| now > before.saturating_add(before / 16));
        if self.room.is_some_and(is_raised) {
            self.lift();
        }
    }

    /// A micro-batch of `cost` succeeded. Returns the ceiling, unless it was lifted long enough ago.
    pub(super) fn succeeded(mut self, cost: usize) -> Option<Self> {
        if cost >= self.cost {
            self.lift();
        }
        if cost >= self.cost || !self.is_lifted {
            self.streak = self.streak.saturating_add(1);
        }
        (!self.is_lifted || self.streak < self.patience).then_some(self)
    }

    fn lift(&mut self) {
        if !self.is_lifted {
            (self.is_lifted, self.streak) = (true, 1);
        }
    }

    /// The largest cost to use where `cap` succeeds and one sample costs `each`: `cap` at first, after enough micro-batches
    /// half of the way up, at last the cost that failed.
    pub(super) fn allows(&self, cap: usize, each: usize) -> usize {
        let gap = self.cost.saturating_sub(cap);
        match self.streak >= self.patience {
            _ if self.is_lifted => usize::MAX,
            false => cap,
            true if gap > cap / 16 + each => cap + (gap / 2).max(each),
            true => self.cost.max(cap),
        }
    }
}

/// Micro-batches after which regions are kept again, doubled with each failure.
const KEEP_AGAIN: u32 = 4096;
/// The same after a failure that other users of the memory caused.
const KEEP_AGAIN_IF_PASSING: u32 = 64;

/// Whether marked regions are recomputed: only where one sample does not fit otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Choice {
    /// The room in which one sample did not fit with regions kept, in bytes; `None` while they are kept.
    refused: Option<u64>,
    /// Micro-batches after which that is tried again.
    patience: u32,
    /// Micro-batches since the last decision.
    lasted: u32,
}

impl Choice {
    pub(super) fn recomputes(&self) -> bool {
        self.refused.is_some()
    }

    /// A micro-batch succeeded.
    pub(super) fn succeeded(&mut self) {
        self.lasted = self.lasted.saturating_add(1);
    }

    /// One sample did not fit with regions kept. After a passing failure that is tried again sooner; each time later.
    pub(super) fn refuse(&mut self, room: Option<Room>, is_passing: bool) {
        let first = if is_passing {
            KEEP_AGAIN_IF_PASSING
        } else {
            KEEP_AGAIN
        };
        self.patience = self.patience.saturating_mul(2).max(first);
        self.refused = Some(room.map_or(0, |room| room.all));
        self.lasted = 0;
    }

    /// Decides for the next batch.
    pub(super) fn decide(&mut self, kept: &Shape, room: Option<Room>) {
        // Without measurements only failures decide.
        let Some(room) = room else { return };
        let is_too_much = (kept.model.predict(kept.each)).is_some_and(|one| one > room.all);
        match self.refused {
            None if is_too_much => self.refuse(Some(room), false),
            // It may have been a single sample that was larger than others, or another user of the memory.
            Some(refused) if !is_too_much => {
                let is_raised = room.all > refused.saturating_add(refused / 16);
                if is_raised || self.lasted >= self.patience {
                    (self.refused, self.lasted) = (None, 0);
                }
            }
            _ => {}
        }
    }
}
