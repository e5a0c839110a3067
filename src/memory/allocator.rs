use std::alloc::{GlobalAlloc, Layout, System};

use super::counters::COUNTERS;

/// A global allocator that counts live bytes, their peak, and the first request over a limit.
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
    pub const fn system() -> Self {
        Self::new(System)
    }
}

impl<A> TrackingAllocator<A> {
    /// Wraps `inner`, for example another crate's allocator.
    pub const fn new(inner: A) -> Self {
        Self { inner }
    }
}

/// Counts an allocation. `Layout` guarantees that its size fits an `isize`.
#[inline]
fn counted(pointer: *mut u8, layout: Layout) -> *mut u8 {
    if pointer.is_null() {
        COUNTERS.refused(layout.size());
    } else {
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
        if moved.is_null() {
            COUNTERS.refused(new_size.saturating_sub(layout.size()));
        } else {
            COUNTERS.add((new_size as isize).wrapping_sub(layout.size() as isize));
        }
        moved
    }
}
