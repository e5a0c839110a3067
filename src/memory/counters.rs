//! The process-wide counts of host memory that [`TrackingAllocator`](super::TrackingAllocator) keeps.
//!
//! Large requests are added to one shared counter at once. Small ones go to one of a few shards, each on a cache line of its
//! own, and reach the shared counter when a shard has gathered [`BATCH`] bytes. Shards are static, not thread-local: what a
//! thread leaves behind when it ends stays counted, and nothing here needs a destructor, which an allocator must not have.

use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Requests of this size and above are counted exactly; a shard holds back less than this, up or down.
pub(super) const BATCH: usize = 16 * 1024;
/// At 2 to 16 cores threads seldom share a shard; together the shards hold back less than 512 KiB.
const SHARDS: usize = 32;
const _: () = assert!(SHARDS * BATCH == super::PEAK_ERROR as usize);

/// 128 bytes: processors fetch cache lines in pairs.
#[repr(align(128))]
struct Line<T>(T);

/// All of it is `Relaxed`: the counts order nothing but themselves.
pub(super) struct Counters {
    live: Line<AtomicIsize>,
    peak: Line<AtomicIsize>,
    limit: Line<AtomicUsize>,
    first_over: Line<FirstOver>,
    shards: [Line<AtomicIsize>; SHARDS],
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
    shards: [const { Line(AtomicIsize::new(0)) }; SHARDS],
};

thread_local! {
    /// Const and without a destructor, so that reaching it neither allocates nor fails.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[inline]
fn shard() -> usize {
    SHARD.try_with(Cell::get).map_or(0, |index| match index {
        usize::MAX => assign_shard(),
        index => index,
    })
}

#[cold]
fn assign_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let index = NEXT.fetch_add(1, Relaxed) % SHARDS;
    let _ = SHARD.try_with(|shard| shard.set(index));
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
        let pending = &self.shards[shard() % SHARDS].0;
        let gathered = pending.fetch_add(bytes, Relaxed) + bytes;
        if gathered.unsigned_abs() >= BATCH {
            self.add_exactly(pending.swap(0, Relaxed));
        }
    }

    fn add_exactly(&self, bytes: isize) {
        let live = self.live.0.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if bytes > 0 {
            // A load first: while nothing rises above the peak its cache line stays shared.
            if live > self.peak.0.load(Relaxed) {
                self.peak.0.fetch_max(live, Relaxed);
            }
            if live > 0 && live.unsigned_abs() > self.limit.0.load(Relaxed) {
                self.note_over(bytes.unsigned_abs(), live.unsigned_abs());
            }
        }
    }

    /// Notes a request that its allocator refused, if it would have gone over the limit.
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

    /// Live bytes: exact while no thread allocates, otherwise a moment's view.
    pub(super) fn in_use(&self) -> usize {
        let pending = self.shards.iter().map(|shard| shard.0.load(Relaxed));
        let live = pending.fold(self.live.0.load(Relaxed), isize::saturating_add);
        live.max(0).unsigned_abs()
    }

    /// The highest count since [`take_peak`](Self::take_peak), within [`PEAK_ERROR`](super::PEAK_ERROR).
    pub(super) fn peak(&self) -> usize {
        let peak = self.peak.0.load(Relaxed).max(0).unsigned_abs();
        peak.max(self.in_use())
    }

    /// Returns the peak and begins a new one at the present count, with nothing held back by the shards.
    pub(super) fn take_peak(&self) -> usize {
        for shard in &self.shards {
            if shard.0.load(Relaxed) != 0 {
                self.live.0.fetch_add(shard.0.swap(0, Relaxed), Relaxed);
            }
        }
        let live = self.live.0.load(Relaxed);
        let peak = self.peak.0.swap(live, Relaxed);
        peak.max(live).max(0).unsigned_abs()
    }

    /// Whether anything was ever counted; before `main` begins the runtime has allocated already.
    pub(super) fn are_fed(&self) -> bool {
        self.peak.0.load(Relaxed) != 0 || self.shards.iter().any(|s| s.0.load(Relaxed) != 0)
    }

    /// Sets the limit that [`first_over`](Self::first_over) watches, and forgets what was noted.
    pub(super) fn watch(&self, limit: usize) {
        self.limit.0.store(limit, Relaxed);
        self.first_over.0.live.store(0, Relaxed);
        self.first_over.0.requested.store(0, Relaxed);
    }

    /// The first request that went over the limit, and the live bytes it led to.
    pub(super) fn first_over(&self) -> Option<(usize, usize)> {
        let requested = self.first_over.0.requested.load(Relaxed);
        (requested > 0).then(|| (requested, self.first_over.0.live.load(Relaxed)))
    }
}
