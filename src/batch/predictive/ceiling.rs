use serde::{Deserialize, Serialize};

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
