//! Snapshots for PyTorch's memory viewer.

mod check;
mod threads;
mod training;

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

use candle_headroom::error::MemoryError;
use candle_headroom::layers::{Snapshot, SnapshotRecorder};
use candle_headroom::{ByteSize, DeviceMemory, Error};

use self::check::check;
use crate::ALLOCATOR;
use crate::support::alone;

/// Upper bound of the bytes that the test harness allocates meanwhile, and of the record's own besides its events.
const NOISE: u64 = 64 * 1024;

fn in_use() -> u64 {
    DeviceMemory::host().open().unwrap().in_use().unwrap()
}

fn record(min_bytes: u64, work: impl FnOnce()) -> Snapshot {
    let recorder = SnapshotRecorder::builder().min_bytes(ByteSize(min_bytes));
    let recorder = recorder.start().unwrap();
    work();
    recorder.stop()
}

#[track_caller]
fn assert_near(a: u64, b: u64) {
    assert!(a.abs_diff(b) <= NOISE, "{a} {b}");
}

#[test]
fn every_block_is_there_with_its_size() {
    let _alone = alone();
    const MIB: usize = 1 << 20;
    let before = in_use();
    let old = vec![1u8; 3 * MIB];
    let mut kept = None;
    let snapshot = record(MIB as u64, || {
        drop(old); // allocated before
        let mut block: Vec<u8> = black_box(vec![0; MIB]); // zeroed
        block.reserve_exact(5 * MIB); // moved or extended
        block.shrink_to(2 * MIB);
        drop(black_box(vec![1u8; MIB - 1])); // too small
        for _ in 0..10 {
            drop(black_box(vec![1u8; MIB])); // an address that is used again
        }
        kept = Some(block);
    });
    let checked = check(&snapshot);
    // One vector of 1, 5 and 2 MiB, and ten of 1.
    assert_eq!(
        (checked.counts["alloc"], checked.counts["free_completed"]),
        (13, 13)
    );
    assert_eq!(snapshot.len(), 26);
    assert_eq!(checked.freed_from_before, 3 << 20);
    assert_eq!(checked.live, [2 << 20]);
    assert_near(checked.first, before + (3 << 20));
    assert_near(checked.last, before + (2 << 20));
    assert_eq!(
        (checked.peak - checked.first, checked.threads),
        (3 << 20, 1)
    );
    assert_eq!((snapshot.dropped(), checked.ooms.len()), (0, 0));
    drop(kept);
}

/// With every block recorded, the running total is the allocator's.
#[test]
fn the_total_is_the_allocators() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let before = in_use();
    let recorder = SnapshotRecorder::builder().min_bytes(ByteSize(0)).start();
    let recorder = recorder.unwrap();
    let (start, scope) = (in_use(), memory.peak_scope());
    let mut blocks: Vec<Vec<u8>> = (1..2000).map(Vec::with_capacity).collect();
    blocks.retain(|block| block.capacity() % 3 == 0);
    let (end, peak) = (in_use(), scope.peak().unwrap());
    let checked = check(&recorder.stop());
    assert_near(checked.first, before);
    assert_near(checked.last - checked.first, end - start);
    let within = candle_headroom::memory::PEAK_ERROR;
    let (recorded, counted) = (checked.peak - checked.first, peak - start);
    assert!(recorded.abs_diff(counted) <= within, "{recorded} {counted}");
    assert!(recorded > 1_500_000); // of 2 MB
}

#[test]
fn the_latest_events_are_kept() {
    let _alone = alone();
    const KIB: usize = 4096;
    let before = in_use();
    let recorder = SnapshotRecorder::builder().capacity(7);
    let recorder = recorder.min_bytes(ByteSize(KIB as u64)).start().unwrap();
    let early: Vec<_> = (0..4).map(|_| vec![1u8; 100 * KIB]).collect();
    let mut late: Vec<_> = (0..5).map(|i| vec![1u8; (i + 1) * KIB]).collect();
    drop(late.remove(1));
    drop(early.into_iter().next());
    let snapshot = recorder.stop();
    // 4 + 5 allocated, 1 + 4 freed: `into_iter` drops the rest as well.
    assert_eq!((snapshot.len(), snapshot.dropped()), (7, 7));
    let checked = check(&snapshot);
    assert_eq!(
        (checked.counts["alloc"], checked.counts["free_completed"]),
        (2, 5)
    );
    assert_eq!(checked.live, [4 * KIB as u64, 5 * KIB as u64]);
    assert_eq!(checked.freed_from_before, 402 * KIB as u64);
    assert_near(checked.last, before + 13 * KIB as u64);
}

/// A request over the limit is an `oom` event, once each time that the limit is crossed, and so is one that the system refuses.
#[test]
fn exhaustion_is_an_event() {
    let _alone = alone();
    const MIB: u64 = 1 << 20;
    let limit = in_use() + 32 * MIB;
    let memory = DeviceMemory::host().limit(ByteSize(limit)).open().unwrap();
    let in_use = || memory.in_use().unwrap();
    // What the limit leaves to a request, by the use before and after it: both change only if another thread allocates meanwhile.
    let mut left = Vec::new();
    let mut request = |mib: usize| {
        let before = in_use();
        let block = black_box(vec![1u8; mib << 20]);
        left.push([limit - before, limit + ((mib as u64) << 20) - in_use()]);
        block
    };
    let snapshot = record(MIB, || {
        let first = black_box(vec![1u8; 8 << 20]);
        let over = request(24);
        let further: Vec<_> = (0..2).map(|_| black_box(vec![1u8; 24 << 20])).collect();
        drop((over, further));
        let again = request(30);
        drop((first, again));
        let huge = Layout::from_size_align(isize::MAX as usize, 1).unwrap();
        // SAFETY: the layout's size is not zero, and the system has no such block, so there is nothing to free.
        assert!(unsafe { ALLOCATOR.alloc(huge) }.is_null());
    });
    let checked = check(&snapshot);
    let requested: Vec<_> = checked.ooms.iter().map(|oom| oom.0).collect();
    assert_eq!(requested, [24 * MIB, 30 * MIB, isize::MAX as u64]);
    // The ring's 10 MiB came before the first block, of 8 MiB.
    assert_eq!((left.len(), left[0][0] / MIB), (2, 13));
    // A request is compared with the counts of large requests, as a peak is: each thread holds back some bytes of small ones.
    let error = candle_headroom::memory::PEAK_ERROR;
    for (oom, [before, after]) in checked.ooms.iter().zip(left) {
        let between = before.min(after) - error..=before.max(after) + error;
        assert!(between.contains(&oom.1), "{}, {between:?}", oom.1);
    }
    drop(memory);
    assert_eq!(checked.ooms[2].1, 0);
}

#[test]
fn one_recorder_at_a_time() {
    let _alone = alone();
    let start = || SnapshotRecorder::builder().capacity(64).start();
    let first = start().unwrap();
    let Err(Error::Memory(error)) = start() else {
        panic!("two recorders")
    };
    assert_eq!(*error, MemoryError::AlreadyRecording);
    assert!(
        error.to_string().contains("stop or drop the first"),
        "{error}"
    );
    assert!(first.stop().dropped() < 1000);
    drop(start().unwrap());
    assert!(start().is_ok());
}

#[test]
fn an_impossible_capacity_is_named() {
    let _alone = alone();
    for events in [0, usize::MAX, 1 << 58] {
        let Err(Error::Memory(error)) = SnapshotRecorder::builder().capacity(events).start() else {
            panic!("{events} events")
        };
        let MemoryError::Capacity {
            events: named,
            each,
            ..
        } = *error
        else {
            panic!("{error}")
        };
        assert_eq!((named, each), (events, 40));
        assert!(error.to_string().contains(&events.to_string()), "{error}");
    }
    // Nothing has been taken.
    assert!(SnapshotRecorder::builder().start().is_ok());
}

#[test]
fn nothing_recorded_is_a_file_as_well() {
    let _alone = alone();
    let snapshot = record(u64::MAX, || drop(black_box(vec![1u8; 1 << 20])));
    assert!(snapshot.is_empty());
    let checked = check(&snapshot);
    assert_eq!(
        (checked.counts["alloc"], checked.counts["snapshot"]),
        (0, 1)
    );
    assert_near(checked.first, in_use());
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let snapshot = record(1 << 20, || ());
    let Err(Error::Output(error)) = snapshot.save(folder.path()) else {
        panic!("a folder was replaced")
    };
    assert!(
        error.target.contains(folder.path().to_str().unwrap()),
        "{error}"
    );
    let mut short = [0u8; 8];
    let written = snapshot.write(&mut &mut short[..]);
    assert!(matches!(written, Err(Error::Output(_))));
    let mut bytes = Vec::new();
    snapshot.write(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"\x80\x04}(") && bytes.ends_with(b"u."));
}
