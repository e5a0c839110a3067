//! Times that arrive late, in another order, for another shape, or never.

use std::time::Duration;

use candle_headroom::Predictive;
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Plan, Reason};

/// One micro-batch of a batch of `samples` that cost `each`, with room for all of it; returns it, if a time is wanted.
fn run(policy: &mut Predictive, samples: usize, each: usize) -> (usize, Option<Extent>) {
    policy.begin(&Extent::new(samples, samples * each));
    let wants_time = policy.wants_time();
    let size = policy.size(samples);
    let mut completed = Completed::new(size);
    (completed.before, completed.limit) = (Some(0), Some(1 << 40));
    completed.peak = Some(1000 + 10 * (size * each) as u64);
    policy.succeeded(&completed);
    (size, wants_time.then(|| Extent::new(size, size * each)))
}

/// Faster for each sample up to 32, not above.
fn elapsed(micro_batch: &Extent) -> Duration {
    Duration::from_micros(10 * micro_batch.samples.max(32) as u64)
}

fn plan(policy: &Predictive) -> Plan {
    policy.plan().unwrap()
}

#[test]
fn late_times_in_any_order_find_the_same_size() {
    for late in [1, 5, 40] {
        let mut policy = Predictive::new();
        let mut waiting = Vec::new();
        for index in 0..2000 {
            waiting.extend(run(&mut policy, 128, 1).1);
            if index % late == late - 1 {
                for micro_batch in waiting.drain(..).rev() {
                    policy.timed(&micro_batch, elapsed(&micro_batch));
                }
            }
        }
        assert_eq!(run(&mut policy, 128, 1).0, 32, "{late}");
        assert_eq!(plan(&policy).reason, Reason::Speed);
    }
}

#[test]
fn a_time_counts_for_the_shape_that_it_was_measured_on() {
    let mut policy = Predictive::new();
    let mut waiting: Option<Extent> = None;
    for index in 0..2000 {
        let each = [100, 1000][index % 2];
        let (_, asked) = run(&mut policy, 128, each);
        // The time of the micro-batch before, which had the other shape: long samples are as fast at any size.
        if let Some(before) = std::mem::replace(&mut waiting, asked) {
            let time = match before.cost / before.samples {
                100 => elapsed(&before),
                _ => Duration::from_micros(100 * before.samples as u64),
            };
            policy.timed(&before, time);
        }
    }
    assert_eq!(run(&mut policy, 128, 1000).0, 1);
    assert_eq!(run(&mut policy, 128, 100).0, 32);
}

#[test]
fn without_times_the_largest_size_is_used() {
    let mut policy = Predictive::new();
    let sizes: Vec<_> = (0..3000).map(|_| run(&mut policy, 128, 1).0).collect();
    assert!(sizes[10..].iter().all(|size| *size == 128));
    // A few arrive, and then none: a smaller size is tried, and given up.
    for _ in 0..8 {
        let (_, micro_batch) = run(&mut policy, 128, 1);
        policy.timed(&micro_batch.unwrap(), Duration::from_micros(1280));
    }
    let sizes: Vec<_> = (0..3000).map(|_| run(&mut policy, 128, 1).0).collect();
    assert!(sizes.contains(&64));
    assert!(sizes[1100..].iter().all(|size| *size == 128));
}

#[test]
fn times_of_unknown_shapes_and_impossible_times_are_ignored() {
    let mut policy = Predictive::new();
    run(&mut policy, 128, 1);
    let before = policy.state();
    for extent in [
        Extent::new(0, 0),
        Extent::new(1, usize::MAX),
        Extent::new(usize::MAX, 1),
    ] {
        for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            policy.timed(&extent, time);
        }
    }
    assert_eq!(policy.state(), before);
    let sizes: Vec<_> = (0..100).map(|_| run(&mut policy, 128, 1).0).collect();
    assert_eq!(sizes[99], 128);
}
