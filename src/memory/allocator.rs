//! The process-wide counts of host memory, and the allocator that keeps them.
//!
//! Large requests go to one shared counter at once, small ones to a slot on its own cache line and from there in batches of [`BATCH`]
//! bytes. Each of the first threads owns a slot and writes it without atomic read-modify-writes; later threads share a few. Slots are
//! static: the counts of ended threads stay, and there is no thread-local destructor, which an allocator must not have.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// A global allocator that counts live bytes and their peak.
///
/// It wraps any allocator and passes every request on. The limit is soft, because candle's CPU backend cannot handle a refused
/// allocation. Requests of 8 KiB and more are counted at once, smaller ones in batches: a peak is exact to
/// [`PEAK_ERROR`](super::PEAK_ERROR) bytes, and live bytes are exact whenever no thread allocates. Counting takes one addition on the
/// thread's own cache line (the first 48 threads have one each, later ones share 16), no lock and no thread-local destructor.
///
/// The counts are process-wide; read them with [`DeviceMemory::host`](super::DeviceMemory::host).
///
/// ```standalone_crate
/// use candle_headroom::{DeviceMemory, TrackingAllocator};
///
/// #[global_allocator]
/// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
///
/// fn main() -> Result<(), candle_headroom::Error> {
///     let memory = DeviceMemory::host().open()?;
///     let before = memory.in_use().expect("the allocator is installed");
///     let _block = vec![1u8; 1 << 20];
///     assert_eq!(memory.in_use().unwrap() - before, 1 << 20);
///     Ok(())
/// }
/// ```
///
/// Requested bytes are counted. The wrapped allocator's own reserve, memory mapped by other means, thread stacks and the program's
/// code are not. While `realloc` moves a block, only the new block is counted.
#[derive(Debug, Default, Clone, Copy)]
pub struct TrackingAllocator<A = System> {
    inner: A,
}

impl TrackingAllocator<System> {
    /// Wraps the system's allocator.
    ///
    /// ```standalone_crate
    /// use candle_headroom::{DeviceMemory, TrackingAllocator};
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
    ///
    /// fn main() -> candle_headroom::Result<()> {
    ///     assert!(DeviceMemory::host().open()?.in_use().is_some());
    ///     Ok(())
    /// }
    /// ```
    pub const fn system() -> Self {
        Self::new(System)
    }
}

impl<A> TrackingAllocator<A> {
    /// Wraps `inner`, for example another crate's allocator, which serves every request as before.
    ///
    /// ```
    /// use std::alloc::System;
    ///
    /// use candle_headroom::TrackingAllocator;
    ///
    /// // As a `#[global_allocator]` of the program; in place of `System`, `mimalloc::MiMalloc` for example.
    /// static ALLOCATOR: TrackingAllocator<System> = TrackingAllocator::new(System);
    /// ```
    pub const fn new(inner: A) -> Self {
        Self { inner }
    }
}

/// Counts an allocation. `Layout` guarantees that its size fits an `isize`.
#[inline]
fn counted(pointer: *mut u8, layout: Layout) -> *mut u8 {
    if !pointer.is_null() {
        COUNTERS.add(layout.size() as isize);
    }
    pointer
}

// SAFETY: every request is passed to `inner` with unchanged arguments and its answer is returned unchanged, so `inner`'s own
// guarantee holds. Counting neither allocates nor unwinds: it uses atomics, a thread-local without a destructor,
// indices reduced to the array's length, and wrapping or saturating sums.
unsafe impl<A: GlobalAlloc> GlobalAlloc for TrackingAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `inner.alloc`.
        counted(unsafe { self.inner.alloc(layout) }, layout)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, which is that of `inner.alloc_zeroed`.
        counted(unsafe { self.inner.alloc_zeroed(layout) }, layout)
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `inner` with this layout, since every allocation is passed through.
        unsafe { self.inner.dealloc(pointer, layout) };
        COUNTERS.add(-(layout.size() as isize));
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`; `new_size` is passed on unchanged.
        let moved = unsafe { self.inner.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            COUNTERS.add((new_size as isize).wrapping_sub(layout.size() as isize));
        }
        moved
    }
}

/// The error bound of a peak of host memory, in bytes (512 KiB): 64 counters each hold back less than 8 KiB.
pub const PEAK_ERROR: u64 = 512 * 1024;

/// Requests of this size and above are counted at once; a slot holds back less than this, up or down.
pub(super) const BATCH: usize = 8 * 1024;
/// Slots with one writer each, for the first threads of the process.
const OWNED: usize = 48;
const SHARED: usize = 16;
const SLOTS: usize = OWNED + SHARED;
const _: () = assert!(SLOTS * BATCH == PEAK_ERROR as usize);

/// Aligned to 128 bytes, because processors fetch cache lines in pairs.
#[repr(align(128))]
struct Line<T>(T);

/// All accesses are `Relaxed`: the counts order nothing but themselves.
pub(super) struct Counters {
    live: Line<AtomicIsize>,
    peak: Line<AtomicIsize>,
    slots: [Line<AtomicIsize>; SLOTS],
}

pub(super) static COUNTERS: Counters = Counters {
    live: Line(AtomicIsize::new(0)),
    peak: Line(AtomicIsize::new(0)),
    slots: [const { Line(AtomicIsize::new(0)) }; SLOTS],
};

thread_local! {
    /// This thread's slot, below [`SLOTS`]. It has no destructor, so that reading it neither allocates nor fails.
    static SLOT: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        match NEXT.fetch_add(1, Relaxed) {
            owned if owned < OWNED => owned,
            later => OWNED + later % SHARED,
        }
    };
}

impl Counters {
    /// Counts `bytes` more, or fewer where negative.
    #[inline]
    pub(super) fn add(&self, bytes: isize) {
        if bytes.unsigned_abs() >= BATCH {
            self.add_exactly(bytes);
            return;
        }
        let index = SLOT.try_with(|slot| *slot).unwrap_or(OWNED);
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
        // Loaded first, so that the peak's cache line stays shared between processors while the count is below it.
        if bytes > 0 && live > self.peak.0.load(Relaxed) {
            self.peak.0.fetch_max(live, Relaxed);
        }
    }

    /// The sum of `shared` and what the slots hold back. While other threads change them, it can be below zero for a moment.
    fn with_pending(&self, shared: isize) -> usize {
        let slots = self.slots.iter().map(|slot| slot.0.load(Relaxed));
        let sum = slots.fold(shared, isize::saturating_add);
        sum.max(0).unsigned_abs()
    }

    /// Live bytes; exact while no thread allocates.
    pub(super) fn in_use(&self) -> usize {
        self.with_pending(self.live.0.load(Relaxed))
    }

    /// The peak of the shared counter plus the slots' present bytes, exact to [`PEAK_ERROR`]. With `take`, a new peak begins at the present
    /// count.
    pub(super) fn peak(&self, take: bool) -> usize {
        let live = self.live.0.load(Relaxed);
        let peak = match take {
            true => self.peak.0.swap(live, Relaxed),
            false => self.peak.0.load(Relaxed),
        };
        self.with_pending(peak.max(live))
    }

    /// Whether the allocator is installed: Rust's runtime allocates before `main` begins.
    pub(super) fn are_fed(&self) -> bool {
        self.peak.0.load(Relaxed) != 0 || self.slots.iter().any(|s| s.0.load(Relaxed) != 0)
    }
}
