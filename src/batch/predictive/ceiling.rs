use serde::{Deserialize, Serialize};

/// Micro-batches that have to succeed before a cost that failed is tried again, and where other users of the memory were the
/// cause.
const PATIENCE: u32 = 128;
const PASSING: u32 = 16;
const MOST: u32 = 1 << 15;
/// A failure that follows another is remembered this many times as long.
const AGAIN: u32 = 4;
/// Up to this patience, each failure in a row asks for more room before the next try.
const DOUBTFUL: u32 = 8 * PATIENCE;

/// A cost that did not fit although the model said that it would. It is avoided until there is more room or for a while:
/// without that the model would lead to the same failure in each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ceiling {
    pub(super) cost: usize,
    /// The room when it failed, in bytes.
    room: Option<u64>,
    /// Micro-batches that have succeeded since the failure, plus one if the cost has been tried again.
    streak: u32,
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
        let patience = match is_passing {
            true => again.clamp(PASSING, PATIENCE),
            false => again.clamp(PATIENCE, MOST),
        };
        Self {
            cost,
            room,
            streak: 0,
            patience,
            is_lifted: false,
        }
    }

    /// Lifts the ceiling if there is more room than at the failure, by more than use varies: a sixteenth, and more after
    /// several failures in a row.
    pub(super) fn follow(&mut self, room: Option<u64>) {
        let parts = u64::from(16 * PATIENCE / self.patience.clamp(PATIENCE, DOUBTFUL));
        let is_raised = self.room.is_some_and(|before| {
            room.is_none_or(|now| now > before.saturating_add(before / parts))
        });
        if is_raised && !self.is_lifted {
            self.is_lifted = true;
            self.restart();
        }
    }

    /// A micro-batch of `cost` succeeded.
    pub(super) fn succeeded(&mut self, cost: usize) {
        if cost >= self.cost && !self.is_lifted {
            self.is_lifted = true;
            self.restart();
        }
        if cost >= self.cost || !self.is_lifted {
            self.streak = self.streak.saturating_add(1);
        }
    }

    /// Returns whether enough micro-batches have succeeded.
    pub(super) fn is_over(&self) -> bool {
        self.streak >= self.patience
    }

    /// The largest cost to use where `cap` succeeds and one sample costs `each`: `cap` at first, later half of the way up, at
    /// last the cost that failed.
    pub(super) fn allows(&self, cap: usize, each: usize) -> usize {
        let gap = self.cost.saturating_sub(cap);
        match self.is_over() {
            _ if self.is_lifted => usize::MAX,
            false => cap,
            true if gap > cap / 8 + each => cap + (gap / 2).max(each),
            true => self.cost.max(cap),
        }
    }

    /// A new try begins.
    pub(super) fn restart(&mut self) {
        self.streak = 1;
    }
}
