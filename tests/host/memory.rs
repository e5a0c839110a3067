//! The tracking allocator and the host's memory, in a program that has it installed. Each test holds `alone()`, because the
//! counts are process-wide.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, thread};

use candle_headroom::memory::{AUTO_FRACTION, Enforcement, Limit, PEAK_ERROR};
use candle_headroom::{ByteSize, DeviceMemory, TrackingAllocator};

use crate::ALLOCATOR;
use crate::support::alone;

/// Upper bound of the bytes that the test harness allocates meanwhile.
const NOISE: u64 = 64 * 1024;

fn in_use() -> u64 {
    DeviceMemory::host().open().unwrap().in_use().unwrap()
}

fn assert_near(a: u64, b: u64, within: u64) {
    assert!(a.abs_diff(b) <= within, "{a} {b}, apart {}", a.abs_diff(b));
}

#[test]
fn small_and_large_requests_are_counted_to_the_byte() {
    let _alone = alone();
    for size in [
        1usize,
        7,
        100,
        16 * 1024 - 1,
        16 * 1024,
        16 * 1024 + 1,
        1 << 20,
    ] {
        // Enough blocks for the noise not to matter.
        let count = (64 * NOISE as usize / size).max(100);
        let before = in_use();
        let blocks: Vec<Vec<u8>> = (0..count).map(|_| Vec::with_capacity(size)).collect();
        let list = blocks.capacity() * size_of::<Vec<u8>>();
        assert_near(in_use() - before, (count * size + list) as u64, NOISE);
        drop(blocks);
        assert_near(in_use(), before, NOISE);
    }
}

#[test]
fn realloc_zeroed_and_aligned_requests_are_counted() {
    let _alone = alone();
    let before = in_use();
    let mut block = vec![0u8; 3 << 20]; // alloc_zeroed
    assert_near(in_use() - before, 3 << 20, NOISE);
    block.reserve_exact(5 << 20); // realloc, up
    assert_near(in_use() - before, 8 << 20, NOISE);
    block.shrink_to(4 << 20); // realloc, down
    assert_near(in_use() - before, 4 << 20, NOISE);
    drop(block);
    let layout = Layout::from_size_align(1 << 20, 4096).unwrap();
    // SAFETY: the layout's size is not zero, and the block is freed with the same layout.
    unsafe {
        let aligned = ALLOCATOR.alloc(layout);
        assert!(!aligned.is_null() && aligned.align_offset(4096) == 0);
        assert_near(in_use() - before, 1 << 20, NOISE);
        ALLOCATOR.dealloc(aligned, layout);
    }
    assert_near(in_use(), before, NOISE);
    drop(Vec::<u8>::with_capacity(0));
    drop(Vec::<[u8; 0]>::with_capacity(10));
    assert_near(in_use(), before, NOISE);
}

/// An allocator that refuses every request, or grants every request without memory behind it.
struct Fake<'a> {
    refuses: &'a AtomicBool,
}

// SAFETY: the test below never reads or writes the returned addresses, and nothing is freed.
unsafe impl GlobalAlloc for Fake<'_> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.refuses.load(Ordering::Relaxed) {
            true => ptr::null_mut(),
            false => ptr::without_provenance_mut(layout.align()),
        }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[test]
fn sizes_near_the_largest_neither_wrap_nor_stay_counted() {
    let _alone = alone();
    let memory = DeviceMemory::host().limit(ByteSize::gib(8)).open().unwrap();
    let before = in_use();
    let refuses = &AtomicBool::new(true);
    let fake = TrackingAllocator::new(Fake { refuses });
    let huge = Layout::from_size_align(isize::MAX as usize, 1).unwrap();
    // SAFETY: nothing is read or written at the addresses; see `Fake`.
    unsafe {
        for _ in 0..5 {
            assert!(fake.alloc(huge).is_null());
            assert!(fake.alloc_zeroed(huge).is_null());
        }
        assert_near(in_use(), before, NOISE);
        assert_eq!(memory.would_fit(u64::MAX), Some(false));

        // Granted and freed: the count rises and falls by the same amount.
        refuses.store(false, Ordering::Relaxed);
        let large = Layout::from_size_align(isize::MAX as usize / 4, 1).unwrap();
        let blocks = [fake.alloc(large), fake.alloc(large)];
        assert_near(in_use(), before + 2 * large.size() as u64, NOISE);
        assert_eq!(memory.would_fit(0), Some(false));
        for block in blocks {
            fake.dealloc(block, large);
        }
        assert_near(in_use(), before, NOISE);
    }
    memory.reset_peak();
}

/// 8 threads allocate and free at random, and end while some of their blocks live on.
#[test]
fn eight_threads_count_right() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let before = in_use();
    let scope = memory.peak_scope();
    let kept: Vec<Vec<Vec<u8>>> = thread::scope(|threads| {
        let work = |seed: usize| {
            move || {
                let mut kept = Vec::new();
                let mut state = seed as u64 + 1;
                for i in 0..20_000 {
                    state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let size = match state >> 60 {
                        0 => 100_000,
                        _ => (state >> 40) as usize % 5000,
                    };
                    let mut block: Vec<u8> = Vec::with_capacity(size);
                    if i % 7 == 0 {
                        block.reserve_exact(size + 100);
                    }
                    if i % 200 == 0 {
                        kept.push(block);
                    }
                }
                kept
            }
        };
        let handles: Vec<_> = (0..8).map(|seed| threads.spawn(work(seed))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    });
    let blocks = kept.iter().flatten().map(Vec::capacity).sum::<usize>();
    let lists = kept
        .iter()
        .map(|list| list.capacity() * size_of::<Vec<u8>>())
        .sum::<usize>();
    let expected = (blocks + lists) as u64;
    assert_near(in_use() - before, expected, NOISE);
    // Each thread held at most one block besides those it kept: 8 times 100,100 bytes.
    let peak = scope.peak().unwrap() - scope.start().unwrap();
    assert!(peak + PEAK_ERROR >= expected, "{peak} {expected}");
    assert!(
        peak <= expected + 8 * 101_000 + PEAK_ERROR + NOISE,
        "{peak} {expected}"
    );
    drop(kept);
    assert_near(in_use(), before, NOISE);
}

/// The counts of ended threads are kept: thousands of short threads do not change the total.
#[test]
fn many_short_threads_leave_no_drift() {
    let _alone = alone();
    let before = in_use();
    for _ in 0..200 {
        let blocks: Vec<Vec<u8>> = thread::scope(|threads| {
            let handles: Vec<_> = (0..8)
                .map(|_| threads.spawn(|| Vec::<u8>::with_capacity(15_000)))
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        });
        drop(blocks); // on another thread than the one that allocated
    }
    assert_near(in_use(), before, NOISE);
}

#[test]
fn peak_scopes_nest_and_overlap() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    const MIB: u64 = 1 << 20;
    let above = |scope: &candle_headroom::memory::PeakScope| {
        (scope.peak().unwrap() - scope.start().unwrap()).div_ceil(MIB)
    };
    let outer = memory.peak_scope();
    drop(vec![0u8; 20 << 20]);
    let inner = memory.peak_scope();
    drop(vec![0u8; 5 << 20]);
    assert_near(
        inner.peak().unwrap() - inner.start().unwrap(),
        5 * MIB,
        PEAK_ERROR + NOISE,
    );
    assert_near(
        outer.peak().unwrap() - outer.start().unwrap(),
        20 * MIB,
        PEAK_ERROR + NOISE,
    );
    let overlapping = memory.peak_scope();
    drop(inner);
    drop(vec![0u8; 30 << 20]);
    drop(outer);
    assert!(above(&overlapping) >= 30);
    memory.reset_peak();
    drop(vec![0u8; 10 << 20]);
    let peak = memory.stats().peak.unwrap();
    assert_near(
        peak - memory.in_use().unwrap(),
        10 * MIB,
        PEAK_ERROR + NOISE,
    );
    assert!(above(&overlapping) >= 30, "its own peak is not reset");
}

#[test]
fn limits_are_shared_changed_and_given_up() {
    let _alone = alone();
    let memory = DeviceMemory::host().limit(ByteSize::gib(1)).open().unwrap();
    let same = DeviceMemory::host().limit(ByteSize::gib(1)).open().unwrap();
    let any = DeviceMemory::host().open().unwrap();
    assert_eq!(any.limit(), Some(1 << 30));
    let error = DeviceMemory::host()
        .limit(ByteSize::gib(2))
        .open()
        .unwrap_err();
    assert!(error.is_memory(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("is open already with a limit of 1.0 GiB, not a limit of 2.0 GiB"),
        "{text}"
    );

    same.set_limit(ByteSize::mib(512)).unwrap();
    assert_eq!(memory.limit(), Some(512 << 20));
    let stats = memory.stats();
    assert_eq!(stats.enforcement, Some(Enforcement::Soft));
    assert!(stats.total.is_some() && stats.free.is_some());
    assert_eq!(memory.would_fit(100 << 20), Some(true));
    assert_eq!(memory.would_fit(512 << 20), Some(false));

    // Below the present use: refused, and unchanged.
    let held = vec![1u8; 64 << 20];
    let error = memory.set_limit(ByteSize::mib(32)).unwrap_err();
    assert!(error.is_memory(), "{error}");
    let text = error.to_string();
    let in_use = text.strip_prefix("a limit of 32.0 MiB is below the ");
    let in_use = in_use.and_then(|rest| rest.split_once(" in use already: "));
    let in_use: ByteSize = in_use.expect("both numbers").0.parse().unwrap();
    assert!(in_use >= ByteSize::mib(64), "{text}");
    assert_eq!(memory.limit(), Some(512 << 20));
    drop(held);

    // What goes over the limit is in the peak.
    memory.reset_peak();
    drop(vec![1u8; 600 << 20]);
    assert!(memory.stats().peak > Some(600 << 20));

    drop((memory, same, any));
    let fresh = DeviceMemory::host().open().unwrap();
    assert_eq!(fresh.limit(), None);
    let error = DeviceMemory::host()
        .limit(ByteSize::kib(1))
        .open()
        .unwrap_err();
    assert!(error.is_memory(), "{error}");
}

#[test]
fn auto_is_a_fraction_of_what_the_machine_has() {
    let _alone = alone();
    if !std::path::Path::new("/proc/meminfo").exists() {
        let error = DeviceMemory::host().limit(Limit::Auto).open().unwrap_err();
        assert!(error.to_string().contains("in bytes"), "{error}");
        return;
    }
    let memory = DeviceMemory::host().limit(Limit::Auto).open().unwrap();
    let free = memory.stats().free.unwrap() as f64;
    let limit = memory.limit().unwrap() as f64;
    // Other programs come and go between the two readings.
    assert!(
        (limit / free - AUTO_FRACTION).abs() < 0.1,
        "{limit} of {free}"
    );
    let again = DeviceMemory::host().limit(Limit::Auto).open().unwrap();
    assert_eq!(again.limit(), memory.limit());
}

#[test]
fn another_allocator_can_be_wrapped() {
    let _alone = alone();
    let wrapped = TrackingAllocator::new(System);
    let before = in_use();
    let layout = Layout::new::<[u8; 100_000]>();
    // SAFETY: the layout's size is not zero, and the block is freed with the same layout by the same allocator.
    unsafe {
        let block = wrapped.alloc(layout);
        assert_near(in_use() - before, 100_000, NOISE);
        wrapped.dealloc(block, layout);
    }
}

/// What this process holds of the machine's memory, files apart.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

/// What a step frees stays for the next one, until it is given back. In a process of its own, where no other test's blocks lie in this
/// thread's heap of 64 MiB: glibc returns a further heap when nothing lies in it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn freed_memory_is_kept_until_it_is_trimmed() {
    const CHILD: &str = "HEADROOM_TEST_TRIM";
    const STEP: u64 = 32 << 20;
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "memory::freed_memory_is_kept_until_it_is_trimmed",
        ]);
        let output = child.env(CHILD, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains("1 passed"), "{printed}");
        return;
    }
    let memory = DeviceMemory::host().open().unwrap();
    let step = || {
        let blocks: Vec<Vec<u8>> = (0..8).map(|block| vec![block + 1; 4 << 20]).collect();
        assert_eq!(blocks[7][1 << 20], 8);
        resident()
    };
    memory.trim().unwrap();
    let before = resident();
    let during = step();
    assert!(during >= before + STEP - (1 << 20), "{before} {during}");
    let (kept, live) = (resident(), in_use());
    assert!(kept + (1 << 20) >= during, "{during} {kept}");
    // The same memory again.
    assert_near(step(), during, 1 << 20);

    memory.trim().unwrap();
    let after = resident();
    assert!(after + STEP - (1 << 20) <= kept, "{kept} {after}");
    assert_near(in_use(), live, NOISE);
}
