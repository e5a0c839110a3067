//! Promise 10: `TrackingAllocator` neither allocates nor unwinds, in any of its ways, on any number of threads and while one ends. For a
//! program whose own allocator counts.

use std::alloc::{GlobalAlloc, Layout};
use std::panic::catch_unwind;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::{ptr, thread};

use candle_headroom::TrackingAllocator;
use stats_alloc::{Region, StatsAlloc};

static REFUSES: AtomicBool = AtomicBool::new(false);
static REQUESTS: AtomicUsize = AtomicUsize::new(0);

/// Refuses every request, or grants it without memory behind it, and counts them.
struct Fake;

static TRACKED: TrackingAllocator<Fake> = TrackingAllocator::new(Fake);

fn answer(align: usize) -> *mut u8 {
    REQUESTS.fetch_add(1, Relaxed);
    match REFUSES.load(Relaxed) {
        true => ptr::null_mut(),
        false => ptr::without_provenance_mut(align),
    }
}

// SAFETY: nobody reads or writes at the addresses.
unsafe impl GlobalAlloc for Fake {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        answer(layout.align())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        answer(layout.align())
    }

    unsafe fn realloc(&self, _: *mut u8, layout: Layout, _: usize) -> *mut u8 {
        answer(layout.align())
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        REQUESTS.fetch_add(1, Relaxed);
    }
}

/// Around a batch of counted bytes, 8 KiB, and up to the largest there can be.
const SIZES: [usize; 8] = [
    1,
    100,
    8191,
    8192,
    8193,
    1 << 20,
    isize::MAX as usize / 2,
    isize::MAX as usize - 4095,
];

/// Makes each request with each size. What is granted is freed. Returns the number of requests.
fn requests() -> usize {
    let mut requests = 0;
    for size in SIZES {
        for align in [1, 4096] {
            let Ok(layout) = Layout::from_size_align(size, align) else {
                continue;
            };
            let held = ptr::without_provenance_mut(align);
            // SAFETY: see `Fake`.
            unsafe {
                for granted in [TRACKED.alloc(layout), TRACKED.alloc_zeroed(layout)] {
                    if !granted.is_null() {
                        TRACKED.dealloc(granted, layout);
                        requests += 1;
                    }
                }
                requests += 2;
                for new in SIZES {
                    requests += 1;
                    if !TRACKED.realloc(held, layout, new).is_null() {
                        let moved = Layout::from_size_align_unchecked(new, align);
                        requests += 1;
                        TRACKED.realloc(held, moved, size);
                    }
                }
            }
        }
    }
    requests
}

/// Makes the requests again when its thread ends.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        requests();
    }
}

thread_local! {
    static LAST: Last = const { Last };
}

/// More threads than have a counter of their own. Returns whether none of them unwound.
fn requests_of_threads(counting: &StatsAlloc<std::alloc::System>) -> bool {
    const THREADS: usize = 80;
    let meeting = Barrier::new(THREADS + 1);
    let run = || {
        LAST.with(|_| ());
        meeting.wait(); // all threads have begun
        meeting.wait(); // their allocations are counted from here
        let done = catch_unwind(requests);
        meeting.wait();
        meeting.wait();
        done.is_ok()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        meeting.wait();
        let region = Region::new(counting);
        meeting.wait();
        meeting.wait();
        let change = region.change();
        meeting.wait();
        let counts = [
            change.allocations,
            change.reallocations,
            change.deallocations,
        ];
        assert_eq!(counts, [0; 3], "what the allocator itself allocates");
        threads
            .into_iter()
            .all(|thread| thread.join().is_ok_and(|is_calm| is_calm))
    })
}

pub fn check(counting: &StatsAlloc<std::alloc::System>) {
    let (before, made) = (REQUESTS.load(Relaxed), requests());
    assert_eq!(REQUESTS.load(Relaxed) - before, made, "each is passed on");
    for refuses in [false, true] {
        REFUSES.store(refuses, Relaxed);
        assert!(requests_of_threads(counting));
    }
    REFUSES.store(false, Relaxed);
}
