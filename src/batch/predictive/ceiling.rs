/// Micro-batches that go well before a cost that has failed is approached again: where the numbers said that it fits, where
/// nobody counts, and where somebody else was the cause.
const KNOWN: u32 = 128;
const UNCOUNTED: u32 = 32;
const PASSING: u32 = 16;
const MOST: u32 = 1024;

/// A cost that did not fit, remembered until there is more room or until it may be worth another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ceiling {
    pub(super) cost: usize,
    /// The room when it failed, in bytes.
    pub(super) room: Option<u64>,
    streak: u32,
    patience: u32,
}

impl Ceiling {
    /// After a failure; one that follows another is remembered twice as long.
    pub(super) fn new(
        cost: usize,
        room: Option<u64>,
        is_passing: bool,
        before: Option<Self>,
    ) -> Self {
        let patience = match (is_passing, room) {
            (true, _) => PASSING,
            (false, Some(_)) => KNOWN,
            (false, None) => UNCOUNTED,
        };
        let again = before.map_or(0, |before| before.patience.saturating_mul(2).min(MOST));
        Self {
            cost,
            room,
            streak: 0,
            patience: patience.max(again),
        }
    }

    /// Whether more room has come than the failure met, by more than use sways: a sixteenth, and as many more as failures
    /// have followed each other.
    pub(super) fn is_raised(&self, room: Option<u64>) -> bool {
        let parts = u64::from(16 * KNOWN / self.patience.clamp(KNOWN, MOST));
        match (self.room, room) {
            (Some(before), Some(now)) => now > before.saturating_add(before / parts),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.streak = self.streak.saturating_add(1);
    }

    /// What may be used where `cap` goes well: no more, or after a while half of the way up, at last the cost that failed.
    pub(super) fn allows(&self, cap: usize) -> usize {
        let gap = self.cost.saturating_sub(cap);
        match self.streak < self.patience {
            true => cap,
            false if gap > cap / 8 + 1 => cap + gap / 2,
            false => self.cost.max(cap),
        }
    }

    /// A try has begun: the next one waits as long again.
    pub(super) fn restart(&mut self) {
        self.streak = 0;
    }
}
