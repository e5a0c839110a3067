//! Events of several threads, and recorders that end while threads allocate.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::{ptr, thread};

use candle_headroom::layers::SnapshotRecorder;
use candle_headroom::{ByteSize, TrackingAllocator};

use super::check::check;
use super::record;
use crate::support::alone;

#[test]
fn threads_are_told_apart() {
    let _alone = alone();
    const SIZE: usize = 100_000;
    let snapshot = record(SIZE as u64, || {
        let sent: Vec<_> = (0..3)
            .map(|_| thread::spawn(|| black_box(vec![1u8; SIZE])).join().unwrap())
            .collect();
        drop(sent); // on this thread
    });
    let checked = check(&snapshot);
    assert_eq!((checked.threads, checked.counts["alloc"]), (3, 3));
    assert_eq!(
        (checked.counts["free_completed"], checked.live.len()),
        (3, 0)
    );
}

/// An allocator of one block, which threads hand to each other. Nobody reads or writes it.
struct OneBlock(AtomicBool);

// SAFETY: the block is given to one caller at a time.
unsafe impl GlobalAlloc for OneBlock {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        while self.0.swap(true, Acquire) {
            thread::yield_now();
        }
        ptr::without_provenance_mut(1 << 20)
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        self.0.store(false, Release);
        thread::yield_now(); // another thread may have the block before this returns
    }
}

/// A release is recorded before the next allocation of its address, on whichever thread that is.
#[test]
fn addresses_pass_between_threads_in_order() {
    let _alone = alone();
    const ROUNDS: usize = 1_000;
    let layout = Layout::from_size_align(1 << 20, 1).unwrap();
    let one = TrackingAllocator::new(OneBlock(AtomicBool::new(false)));
    let snapshot = record(1 << 20, || {
        thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..ROUNDS {
                        // SAFETY: the layout's size is not zero, and the block is freed with it.
                        unsafe { one.dealloc(one.alloc(layout), layout) };
                    }
                });
            }
        });
    });
    let checked = check(&snapshot);
    let blocks = 4 * ROUNDS as u64;
    let [allocated, freed] = ["alloc", "free_completed"].map(|action| checked.counts[action]);
    assert_eq!((allocated, freed, checked.threads), (blocks, blocks, 4));
    assert_eq!((checked.freed_from_before, checked.live.len()), (0, 0));
}

#[test]
fn recorders_end_while_threads_allocate() {
    let _alone = alone();
    let is_done = AtomicBool::new(false);
    thread::scope(|threads| {
        for seed in 0..3 {
            let is_done = &is_done;
            threads.spawn(move || {
                let mut kept = Vec::new();
                for round in seed.. {
                    if is_done.load(Relaxed) {
                        break;
                    }
                    kept.push(vec![0u8; 1 + round % 5 * 1500]);
                    if kept.len() > 50 {
                        kept.drain(..round % 50);
                    }
                }
            });
        }
        let start = |capacity| {
            let builder = SnapshotRecorder::builder().capacity(capacity);
            builder.min_bytes(ByteSize(1)).start().unwrap()
        };
        for _ in 0..50 {
            drop(start(16));
        }
        // Threads overtake each other in a ring of two events.
        let mut overtaken = 0;
        for _ in 0..50 {
            let recorder = start(2);
            thread::yield_now();
            let snapshot = recorder.stop();
            overtaken += usize::from(snapshot.dropped() > 0);
            assert!(snapshot.len() <= 4, "{snapshot:?}");
        }
        assert!(overtaken > 0);
        let recorder = start(1 << 12);
        for _ in 0..50 {
            thread::yield_now();
        }
        check(&recorder.stop());
        is_done.store(true, Relaxed);
    });
}

/// Of threads that start recorders at the same time one succeeds, and the end of its record does not end the next one's.
#[test]
fn recorders_follow_each_other_on_several_threads() {
    let _alone = alone();
    const SIZE: usize = 1 << 16;
    let start = || loop {
        let builder = SnapshotRecorder::builder().capacity(1 << 10);
        match builder.min_bytes(ByteSize(SIZE as u64)).start() {
            Ok(recorder) => break recorder,
            Err(_) => thread::yield_now(),
        }
    };
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..100 {
                    let recorder = start();
                    drop(black_box(vec![1u8; SIZE]));
                    let snapshot = recorder.stop();
                    assert!(snapshot.len() >= 2, "{snapshot:?}");
                }
            });
        }
    });
}
