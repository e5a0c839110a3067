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
    peak: Peak,
}

/// The ledger at the highest use.
#[derive(Debug, Clone, Default)]
struct Peak {
    bytes: u64,
    /// As much of `held` was there at that time and still is.
    shared: usize,
    /// The rest of it, the last first.
    taken: Vec<(Place, u64)>,
    /// What came on top for a moment, and where.
    excess: (Place, u64),
    before: u64,
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

    /// The highest use so far.
    pub(super) fn peak(&self) -> u64 {
        self.peak.bytes
    }

    /// Where the use was highest.
    pub(super) fn highest_at(&self) -> Place {
        self.peak.excess.0
    }

    /// Bytes that were held when it began and still were at the highest use.
    pub(super) fn before(&self) -> u64 {
        self.peak.before
    }

    /// What was allocated since and was held at the highest use; a place may come several times.
    pub(super) fn at_peak(&self) -> impl Iterator<Item = (Place, u64)> {
        let shared = self.held.iter().take(self.peak.shared);
        let held = shared.chain(self.peak.taken.iter().rev());
        held.chain([&self.peak.excess]).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::layers::path::PathId;

    fn place(number: u64) -> Place {
        let spans = PathId::numbered(number);
        Place { phase: None, spans }
    }

    fn at_peak(ledger: &Ledger) -> HashMap<Place, u64> {
        let mut sums = HashMap::new();
        for (place, bytes) in ledger.at_peak().filter(|(_, bytes)| *bytes > 0) {
            *sums.entry(place).or_insert(0) += bytes;
        }
        sums
    }

    #[test]
    fn what_was_held_at_the_peak_survives_later_frees() {
        let [a, b, c] = [1, 2, 3].map(place);
        let mut ledger = Ledger::default();
        ledger.begin(1000);
        ledger.note(a, 1100, 1100);
        ledger.note(b, 1300, 1350); // 50 more for a moment
        ledger.note(Place::default(), 1290, 1300); // 10 of b's are freed
        ledger.note(c, 1295, 1295);
        ledger.note(Place::default(), 900, 1295); // everything, and 100 from before
        ledger.note(c, 1200, 1200); // not as high
        assert_eq!(ledger.peak(), 1350);
        assert_eq!(at_peak(&ledger), HashMap::from([(a, 100), (b, 250)]));
        assert_eq!((ledger.before(), ledger.highest_at()), (1000, b));
        ledger.note(a, 1400, 1400);
        assert_eq!(at_peak(&ledger), HashMap::from([(c, 300), (a, 200)]));
        assert_eq!(ledger.before(), 900);
    }

    /// Whatever happens, the parts of the peak are the peak.
    #[test]
    fn the_parts_sum_up_to_the_peak() {
        let places = [0, 1, 2, 3].map(place);
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut ledger = Ledger::default();
            ledger.begin(500);
            let (mut highest, mut known) = (500, ledger.clone());
            for _ in 0..random(60) {
                let now = random(1000);
                let top = now.max(ledger.now) + random(2) * random(50);
                ledger.note(places[random(4) as usize], now, top);
                let sum: u64 = ledger.at_peak().map(|(_, bytes)| bytes).sum();
                assert_eq!(sum + ledger.before(), ledger.peak());
                if top > highest {
                    (highest, known) = (top, ledger.clone());
                }
                assert_eq!(ledger.peak(), highest);
                assert_eq!(at_peak(&ledger), at_peak(&known));
            }
        }
    }
}
