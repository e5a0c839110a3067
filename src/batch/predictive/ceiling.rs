/// Micro-batches that go well before a cost that has failed is approached again: where the numbers said that it fits, where
/// nobody counts, and where somebody else was the cause.
const KNOWN: u32 = 128;
const UNCOUNTED: u32 = 32;
const PASSING: u32 = 16;
const MOST: u32 = 1 << 15;
/// A failure that follows another is remembered so many times as long: what comes back again and again is met less and less.
const AGAIN: u32 = 4;
/// Failures in a row up to this patience ask for more room each.
const DOUBTFUL: u32 = 8 * KNOWN;

/// A cost that did not fit, remembered until there is more room or until it may be worth another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ceiling {
    pub(super) cost: usize,
    /// The room when it failed, in bytes.
    pub(super) room: Option<u64>,
    /// Micro-batches that have gone well since; one more where it has been tried again.
    streak: u32,
    patience: u32,
}

impl Ceiling {
    /// After a failure; one that follows another is remembered longer.
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
        // On the way down from one failure to what fits there are others, and they count as one.
        let again = before.map_or(0, |before| match before.streak {
            0 => before.patience,
            _ => before.patience.saturating_mul(AGAIN).min(MOST),
        });
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
        let parts = u64::from(16 * KNOWN / self.patience.clamp(KNOWN, DOUBTFUL));
        match (self.room, room) {
            (Some(before), Some(now)) => now > before.saturating_add(before / parts),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.streak = self.streak.saturating_add(1);
    }

    /// Whether as much has gone well as it takes.
    pub(super) fn is_over(&self) -> bool {
        self.streak >= self.patience
    }

    /// What may be used where `cap` goes well: no more, or after a while half of the way up, at last the cost that failed.
    /// One sample costs `each`.
    pub(super) fn allows(&self, cap: usize, each: usize) -> usize {
        let gap = self.cost.saturating_sub(cap);
        match self.is_over() {
            false => cap,
            true if gap > cap / 8 + each => cap + (gap / 2).max(each),
            true => self.cost.max(cap),
        }
    }

    /// A try has begun: the next one waits as long again.
    pub(super) fn restart(&mut self) {
        self.streak = 1;
    }
}
