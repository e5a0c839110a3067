//! The cost of counting, compared with the system allocator and the crates `cap` (with its `stats`) and `stats_alloc`.
//!
//! `cargo bench --bench host_allocator [-- --quick]`

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use candle_headroom::TrackingAllocator;
use candle_nn::{AdamW, Optimizer};
use cap::Cap;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::transformer::Config;
use support::{Contender, Job, Rounds, alternate, figure, is_quick};

/// The whole program's allocator: counted or not, so that one run can compare a training step with both.
struct Switch {
    counts: AtomicBool,
    tracking: TrackingAllocator,
}

// SAFETY: both branches call `System` with unchanged arguments, so a block may be allocated in one and freed in the other.
unsafe impl GlobalAlloc for Switch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.counts.load(Relaxed) {
            // SAFETY: the caller upholds the contract.
            true => unsafe { self.tracking.alloc(layout) },
            // SAFETY: as above.
            false => unsafe { System.alloc(layout) },
        }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.counts.load(Relaxed) {
            // SAFETY: the caller upholds the contract.
            true => unsafe { self.tracking.alloc_zeroed(layout) },
            // SAFETY: as above.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.counts.load(Relaxed) {
            // SAFETY: the caller upholds the contract.
            true => unsafe { self.tracking.dealloc(pointer, layout) },
            // SAFETY: as above.
            false => unsafe { System.dealloc(pointer, layout) },
        }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match self.counts.load(Relaxed) {
            // SAFETY: the caller upholds the contract.
            true => unsafe { self.tracking.realloc(pointer, layout, size) },
            // SAFETY: as above.
            false => unsafe { System.realloc(pointer, layout, size) },
        }
    }
}

#[global_allocator]
static SWITCH: Switch = Switch {
    counts: AtomicBool::new(false),
    tracking: TrackingAllocator::system(),
};

static TRACKING: TrackingAllocator = TrackingAllocator::system();
static CAP: Cap<System> = Cap::new(System, usize::MAX);
static STATS_ALLOC: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Blocks that live at once, per thread.
const LIVE: usize = 64;

/// Allocates and frees `operations` blocks, mostly of 16 to 1,023 bytes, every 64th of 64 KiB, each living for a while.
fn churn(allocator: &impl GlobalAlloc, operations: usize, seed: u64) {
    let mut live = [(std::ptr::null_mut::<u8>(), Layout::new::<u8>()); LIVE];
    let mut state = seed;
    for i in 0..operations {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let size = match i % 64 {
            63 => 65_536,
            _ => 16 + (state >> 40) as usize % 1008,
        };
        let (old, old_layout) = live[i % LIVE];
        let layout = Layout::from_size_align(size, 16).expect("a valid layout");
        // SAFETY: each block is freed once, with its layout, by the allocator that made it; no size is zero.
        unsafe {
            if !old.is_null() {
                allocator.dealloc(old, old_layout);
            }
            let block = allocator.alloc(layout);
            assert!(!block.is_null());
            block.write(1);
            live[i % LIVE] = (block, layout);
        }
    }
    for (block, layout) in live {
        if !block.is_null() {
            // SAFETY: each remaining block is freed once, with its layout.
            unsafe { allocator.dealloc(block, layout) };
        }
    }
}

/// The time from the start of the first thread to the end of the last one, measured in the threads, because the thread that
/// joins them may be woken late.
fn timed(allocator: &(impl GlobalAlloc + Sync), threads: usize, operations: usize) -> Duration {
    let start = Barrier::new(threads);
    let spans = thread::scope(|scope| {
        let work = |thread: usize| {
            let start = &start;
            move || {
                start.wait();
                let began = Instant::now();
                churn(allocator, operations, thread as u64 + 1);
                (began, Instant::now())
            }
        };
        let handles: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(work(thread)))
            .collect();
        let spans = handles
            .into_iter()
            .map(|handle| handle.join().expect("a thread that ends"));
        spans.collect::<Vec<_>>()
    });
    let began = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    began
        .zip(ended)
        .map_or(Duration::ZERO, |(began, ended)| ended - began)
}

fn compare(threads: usize, operations: usize, rounds: usize) -> Rounds {
    let contenders = vec![
        Contender::timing_itself("system", move || timed(&System, threads, operations)),
        Contender::timing_itself("tracking", move || timed(&TRACKING, threads, operations)),
        Contender::timing_itself("cap", move || timed(&CAP, threads, operations)),
        Contender::timing_itself("stats_alloc", move || {
            timed(STATS_ALLOC, threads, operations)
        }),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print(
        &format!("{threads} threads, a block made and freed"),
        operations * threads,
    );
    rounds
}

fn training_step(rounds: usize) -> candle_headroom::Result<f64> {
    let config = Config {
        context: 32,
        width: 32,
        heads: 2,
        layers: 2,
    };
    let job = Job::new(config, 4)?;
    let mut optimizer = AdamW::new_lr(job.vars.clone(), 1e-4)?;
    let mut step = |counts: bool| {
        SWITCH.counts.store(counts, Relaxed);
        let began = Instant::now();
        let loss = job.loss(0, 4).expect("a loss");
        optimizer.backward_step(&loss).expect("a step");
        drop(loss);
        let elapsed = began.elapsed();
        SWITCH.counts.store(false, Relaxed);
        elapsed
    };
    let step = std::cell::RefCell::new(&mut step);
    let contenders = vec![
        Contender::timing_itself("system", || (step.borrow_mut())(false)),
        Contender::timing_itself("tracking", || (step.borrow_mut())(true)),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print("a training step of 4 × 32 bytes, 43 k parameters", 1);
    Ok(rounds.ratio("tracking", "system"))
}

fn main() -> candle_headroom::Result<()> {
    let (operations, rounds, steps) = if is_quick() {
        (40_000, 21, 301)
    } else {
        (200_000, 41, 2001)
    };
    // Runs first, so that the training threads are the first threads of the process, as in a program.
    let training = training_step(steps)?;
    let mut figures = Vec::new();
    for threads in [1, 2, 8] {
        let result = compare(threads, operations / threads, rounds);
        for other in ["system", "cap", "stats_alloc"] {
            let name = format!("host_allocator/vs_{other}_{threads}_threads");
            figures.push((name, result.ratio("tracking", other)));
        }
    }
    figures.push(("host_allocator/training_step".to_owned(), training));
    for (name, ratio) in figures {
        figure(&name, ratio, "x");
    }
    Ok(())
}
