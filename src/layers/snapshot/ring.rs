//! The latest events, written by any number of threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// An event in four words.
pub(super) type Words = [u64; 4];

/// Bytes that an event takes.
pub(super) const EACH: usize = size_of::<Slot>();

/// A slot with this turn is being written.
const BUSY: u64 = u64::MAX;

pub(super) struct Ring {
    slots: Box<[Slot]>,
    /// The number of events so far, kept or not.
    count: AtomicU64,
}

#[derive(Default)]
struct Slot {
    /// The number of the event in it, counted from 1; 0 if there is none.
    turn: AtomicU64,
    words: [AtomicU64; 4],
}

impl Ring {
    /// A ring for the latest `capacity` events, all of whose memory is touched. `None` if there is not enough, or no capacity.
    pub(super) fn new(capacity: usize) -> Option<Self> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(capacity).ok()?;
        slots.resize_with(capacity, Slot::default);
        (capacity > 0).then(|| Self {
            slots: slots.into(),
            count: AtomicU64::new(0),
        })
    }

    /// Adds an event. It neither waits nor allocates: if a slower thread still writes an event of an earlier turn to the same
    /// slot, this one is not kept.
    pub(super) fn push(&self, words: Words) {
        let before = self.count.fetch_add(1, Relaxed);
        let Some(slot) = self.slot(before) else {
            return;
        };
        let (seen, turn) = (slot.turn.load(Relaxed), before + 1);
        // A later event is there already if this thread was the slow one.
        if seen > turn || (slot.turn.compare_exchange(seen, BUSY, Acquire, Relaxed)).is_err() {
            return;
        }
        for (word, value) in slot.words.iter().zip(words) {
            word.store(value, Relaxed);
        }
        slot.turn.store(turn, Release);
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        let place = number.checked_rem(self.slots.len() as u64)?;
        self.slots.get(place as usize)
    }

    /// The kept events, oldest first. Nobody writes meanwhile.
    pub(super) fn kept(&self) -> impl Iterator<Item = Words> {
        let count = self.count();
        let first = count.saturating_sub(self.slots.len() as u64);
        (first..count).filter_map(|number| {
            let slot = self.slot(number)?;
            let is_its = slot.turn.load(Acquire) == number + 1;
            is_its.then(|| slot.words.each_ref().map(|word| word.load(Relaxed)))
        })
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// What it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn kept(ring: &Ring) -> Vec<Words> {
        ring.kept().collect()
    }

    #[test]
    fn the_latest_are_kept_in_order() {
        let ring = Ring::new(3).unwrap();
        assert_eq!(kept(&ring), [[0; 4]; 0]);
        for lap in 1..=7 {
            ring.push([lap; 4]);
            let first = lap.saturating_sub(2).max(1);
            let expected: Vec<_> = (first..=lap).map(|n| [n; 4]).collect();
            assert_eq!((kept(&ring), ring.count()), (expected, lap));
        }
    }

    #[test]
    fn impossible_capacities_are_refused() {
        assert!(Ring::new(0).is_none());
        assert!(Ring::new(usize::MAX).is_none());
        assert!(Ring::new(isize::MAX as usize / EACH).is_none());
    }

    /// A slot never holds words of two events, however often threads overtake each other.
    #[test]
    fn events_are_never_mixed() {
        const EACH_THREAD: u64 = 50_000;
        let ring = Ring::new(2).unwrap();
        thread::scope(|threads| {
            for thread in 1..=4 {
                let ring = &ring;
                threads.spawn(move || {
                    for number in 0..EACH_THREAD {
                        ring.push([thread << 32 | number; 4]);
                    }
                });
            }
        });
        assert_eq!(ring.count(), 4 * EACH_THREAD);
        let kept = kept(&ring);
        assert!(kept.len() <= 2);
        for words in kept {
            assert!(words.iter().all(|word| *word == words[0]), "{words:x?}");
        }
    }
}
