//! The process-wide counts of host memory that [`TrackingAllocator`](super::TrackingAllocator) keeps.
//!
//! Large requests go to one shared counter at once. Small ones go to a slot on a cache line of its own, and from there to the
//! shared counter in batches of [`BATCH`] bytes. The first threads own a slot each and write it without atomic
//! read-modify-writes; later ones share a few. Slots are static, not thread-local: an ended thread's counts stay, and nothing needs a
//! destructor, which an allocator must not have.

use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Requests of this size and above are counted at once; a slot holds back less than this, up or down.
pub(super) const BATCH: usize = 8 * 1024;
/// Slots with one writer each, for the first threads of the process.
const OWNED: usize = 48;
const SHARED: usize = 16;
const SLOTS: usize = OWNED + SHARED;
const _: () = assert!(SLOTS * BATCH == super::PEAK_ERROR as usize);

/// 128 bytes: processors fetch cache lines in pairs.
#[repr(align(128))]
struct Line<T>(T);

/// All accesses are `Relaxed`: the counts order nothing but themselves.
pub(super) struct Counters {
    live: Line<AtomicIsize>,
    peak: Line<AtomicIsize>,
    limit: Line<AtomicUsize>,
    first_over: Line<FirstOver>,
    slots: [Line<AtomicIsize>; SLOTS],
}

struct FirstOver {
    requested: AtomicUsize,
    live: AtomicUsize,
}

pub(super) static COUNTERS: Counters = Counters {
    live: Line(AtomicIsize::new(0)),
    peak: Line(AtomicIsize::new(0)),
    limit: Line(AtomicUsize::new(usize::MAX)),
    first_over: Line(FirstOver {
        requested: AtomicUsize::new(0),
        live: AtomicUsize::new(0),
    }),
    slots: [const { Line(AtomicIsize::new(0)) }; SLOTS],
};

thread_local! {
    /// Const and without a destructor, so that reaching it neither allocates nor fails.
    static SLOT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// This thread's slot, below [`SLOTS`].
#[inline]
fn slot() -> usize {
    SLOT.try_with(Cell::get).map_or(OWNED, |index| match index {
        usize::MAX => assign_slot(),
        index => index,
    })
}

#[cold]
fn assign_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let index = match NEXT.fetch_add(1, Relaxed) {
        owned if owned < OWNED => owned,
        later => OWNED + later % SHARED,
    };
    let _ = SLOT.try_with(|slot| slot.set(index));
    index
}

impl Counters {
    /// Counts `bytes` more, or fewer where negative.
    #[inline]
    pub(super) fn add(&self, bytes: isize) {
        if bytes.unsigned_abs() >= BATCH {
            self.add_exactly(bytes);
            return;
        }
        let index = slot();
        let pending = &self.slots[index % SLOTS].0;
        if index < OWNED {
            let gathered = pending.load(Relaxed) + bytes;
            if gathered.unsigned_abs() < BATCH {
                pending.store(gathered, Relaxed);
            } else {
                pending.store(0, Relaxed);
                self.add_exactly(gathered);
            }
        } else {
            let gathered = pending.fetch_add(bytes, Relaxed) + bytes;
            if gathered.unsigned_abs() >= BATCH {
                self.add_exactly(pending.swap(0, Relaxed));
            }
        }
    }

    fn add_exactly(&self, bytes: isize) {
        let live = self.live.0.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if bytes > 0 {
            // A load first: while no count rises above the peak, its cache line stays shared.
            if live > self.peak.0.load(Relaxed) {
                self.peak.0.fetch_max(live, Relaxed);
            }
            if live > 0 && live.unsigned_abs() > self.limit.0.load(Relaxed) {
                self.note_over(bytes.unsigned_abs(), live.unsigned_abs());
            }
        }
    }

    /// Notes a request that the allocator refused and that would have gone over the limit.
    pub(super) fn refused(&self, bytes: usize) {
        let live = self.in_use();
        if live.saturating_add(bytes) > self.limit.0.load(Relaxed) {
            self.note_over(bytes, live);
        }
    }

    #[cold]
    fn note_over(&self, requested: usize, live: usize) {
        let first = &self.first_over.0;
        if first
            .requested
            .compare_exchange(0, requested, Relaxed, Relaxed)
            .is_ok()
        {
            first.live.store(live, Relaxed);
        }
    }

    /// Bytes that the slots hold back.
    fn pending(&self) -> isize {
        let slots = self.slots.iter().map(|slot| slot.0.load(Relaxed));
        slots.fold(0, isize::saturating_add)
    }

    /// Live bytes; exact while no thread allocates.
    pub(super) fn in_use(&self) -> usize {
        bytes(self.live.0.load(Relaxed), self.pending())
    }

    /// The peak of the shared counter and what the slots hold back now, exact to [`PEAK_ERROR`](super::PEAK_ERROR). A new peak begins at the
    /// present count.
    pub(super) fn take_peak(&self) -> usize {
        let live = self.live.0.load(Relaxed);
        let peak = self.peak.0.swap(live, Relaxed);
        bytes(peak.max(live), self.pending())
    }

    /// Whether the allocator is installed: the runtime allocates before `main` begins.
    pub(super) fn are_fed(&self) -> bool {
        self.peak.0.load(Relaxed) != 0 || self.slots.iter().any(|s| s.0.load(Relaxed) != 0)
    }

    /// Sets the limit that [`first_over`](Self::first_over) watches, and clears the note.
    pub(super) fn watch(&self, limit: usize) {
        self.limit.0.store(limit, Relaxed);
        self.first_over.0.live.store(0, Relaxed);
        self.first_over.0.requested.store(0, Relaxed);
    }

    /// The first request over the limit, and the live bytes with it.
    pub(super) fn first_over(&self) -> Option<(usize, usize)> {
        let requested = self.first_over.0.requested.load(Relaxed);
        (requested > 0).then(|| (requested, self.first_over.0.live.load(Relaxed)))
    }
}

/// A count that other threads are changing can be below zero for a moment.
fn bytes(shared: isize, pending: isize) -> usize {
    shared.saturating_add(pending).max(0).unsigned_abs()
}
