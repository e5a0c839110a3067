//! What was allocated where and is still held.

use super::path::Place;

/// Bytes by place, in the order in which they were allocated.
///
/// Only the use as a whole is known, not which block is freed. A free is taken from what was allocated last: graphs are built and
/// dropped like stacks, and temporary tensors live shortly.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    now: u64,
    /// Bytes that were held when it began and still are.
    before: u64,
    held: Vec<(Place, u64)>,
    pub(super) peak: Peak,
}

/// The ledger at the highest use.
#[derive(Debug, Clone, Default)]
pub(super) struct Peak {
    pub(super) bytes: u64,
    /// As much of `held` was there at that time and still is.
    shared: usize,
    /// The rest of it, the last first.
    taken: Vec<(Place, u64)>,
    /// What came on top for a moment, and where.
    pub(super) excess: (Place, u64),
    /// Bytes that were held when the ledger began and still were.
    pub(super) before: u64,
}

impl Ledger {
    /// Begins again with this use.
    pub(super) fn begin(&mut self, now: u64) {
        (self.now, self.before) = (now, now);
        self.held.clear();
        self.set_peak(Place::default(), now);
    }

    /// Notes the use after some work at `place`, and the highest use during it.
    pub(super) fn note(&mut self, place: Place, now: u64, highest: u64) {
        let highest = highest.max(now);
        if highest > self.peak.bytes {
            self.set_peak(place, highest);
        }
        match now.checked_sub(self.now) {
            Some(0) => {}
            Some(more) => self.add(place, more),
            None => self.free(self.now - now),
        }
        self.now = now;
    }

    /// Goes on from this use: what has changed in between counts nowhere.
    pub(super) fn skip_to(&mut self, now: u64) {
        self.before = self.before.saturating_add(now).saturating_sub(self.now);
        self.now = now;
    }

    fn set_peak(&mut self, place: Place, bytes: u64) {
        self.peak.bytes = bytes;
        self.peak.before = self.before;
        self.peak.shared = self.held.len();
        self.peak.taken.clear();
        self.peak.excess = (place, bytes.saturating_sub(self.now));
    }

    fn add(&mut self, place: Place, bytes: u64) {
        let is_shared = self.held.len() == self.peak.shared;
        match self.held.last_mut() {
            Some((last, held)) if *last == place && !is_shared => *held += bytes,
            _ => self.held.push((place, bytes)),
        }
    }

    fn free(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let Some(last @ (place, held)) = self.held.pop() else {
                self.before = self.before.saturating_sub(bytes);
                return;
            };
            if self.held.len() < self.peak.shared {
                self.peak.shared = self.held.len();
                self.peak.taken.push(last);
            }
            if held > bytes {
                self.held.push((place, held - bytes));
            }
            bytes = bytes.saturating_sub(held);
        }
    }

    /// What was allocated since and was held at the highest use; a place may come several times.
    pub(super) fn at_peak(&self) -> impl Iterator<Item = (Place, u64)> {
        let shared = self.held.iter().take(self.peak.shared);
        let held = shared.chain(self.peak.taken.iter().rev());
        held.chain([&self.peak.excess]).copied()
    }
}
