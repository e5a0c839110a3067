//! Times that arrive late, in another order, for another shape, or never.

use std::time::Duration;

use candle_headroom::Predictive;
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Plan, Reason, Regions};
use candle_headroom::error::MemoryReading;

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
        let mut policy = Predictive::default();
        let mut waiting = Vec::new();
        for index in 0..2000 {
            waiting.extend(run(&mut policy, 128, 1).1);
            if index % late == late - 1 {
                for micro_batch in waiting.drain(..).rev() {
                    policy.timed(&micro_batch, Regions::None, elapsed(&micro_batch));
                }
            }
        }
        assert_eq!(run(&mut policy, 128, 1).0, 32, "{late}");
        assert_eq!(plan(&policy).reason, Reason::Speed);
    }
}

#[test]
fn a_time_counts_for_the_shape_that_it_was_measured_on() {
    let mut policy = Predictive::default();
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
            policy.timed(&before, Regions::None, time);
        }
    }
    assert_eq!(run(&mut policy, 128, 1000).0, 1);
    assert_eq!(run(&mut policy, 128, 100).0, 32);
}

/// What is timed is bounded by the largest size that is allowed, so timing ends.
#[test]
fn an_allowed_size_is_not_timed_for_ever() {
    let mut policy = Predictive::builder().at_most(16).build().unwrap();
    let mut sizes = Vec::new();
    for _ in 0..1000 {
        let (size, asked) = run(&mut policy, 64, 1);
        sizes.push(size);
        if let Some(micro_batch) = asked {
            policy.timed(&micro_batch, Regions::None, elapsed(&micro_batch));
        }
    }
    assert!(sizes[200..].iter().all(|size| *size == 16), "{sizes:?}");
}

#[test]
fn without_times_the_largest_size_is_used() {
    let mut policy = Predictive::default();
    let sizes: Vec<_> = (0..3000).map(|_| run(&mut policy, 128, 1).0).collect();
    assert!(sizes[10..].iter().all(|size| *size == 128));
    // A few arrive, and then none: a smaller size is tried, and given up.
    for _ in 0..8 {
        let (_, micro_batch) = run(&mut policy, 128, 1);
        policy.timed(
            &micro_batch.unwrap(),
            Regions::None,
            Duration::from_micros(1280),
        );
    }
    let sizes: Vec<_> = (0..3000).map(|_| run(&mut policy, 128, 1).0).collect();
    assert!(sizes.contains(&64));
    assert!(sizes[1100..].iter().all(|size| *size == 128));
}

#[test]
fn times_of_unknown_shapes_and_impossible_times_are_ignored() {
    let mut policy = Predictive::default();
    run(&mut policy, 128, 1);
    let before = policy.state();
    for extent in [
        Extent::new(0, 0),
        Extent::new(1, usize::MAX),
        Extent::new(usize::MAX, 1),
    ] {
        for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            policy.timed(&extent, Regions::None, time);
        }
    }
    assert_eq!(policy.state(), before);
    let sizes: Vec<_> = (0..100).map(|_| run(&mut policy, 128, 1).0).collect();
    assert_eq!(sizes[99], 128);
}

/// The size that is settled on in batches of 1,024 where the micro-batch with this index takes `seconds(size, index)`.
fn settle(steps: usize, seconds: impl Fn(f64, usize) -> f64) -> usize {
    let mut policy = Predictive::default();
    for index in 0..steps {
        let (size, _) = run(&mut policy, 1024, 1);
        let time = Duration::from_secs_f64(seconds(size as f64, index));
        policy.timed(&Extent::new(size, size), Regions::None, time);
    }
    policy.size(1024)
}

#[test]
fn the_smallest_size_on_the_plateau_is_chosen() {
    assert_eq!(settle(1000, |size, _| size / size.min(64.)), 64);
    assert_eq!(settle(1000, |_, _| 1.), 1024, "faster throughout");
    assert_eq!(settle(1000, |size, _| size * size), 1, "slower throughout");
}

/// Whole samples and even parts make a trial smaller than half: 3 samples become 1, and 101 become 34 instead of 50.
#[test]
fn uneven_parts_are_timed_too() {
    for (samples, room, fastest) in [(24, 3, 1), (101, 300, 34)] {
        let mut policy = Predictive::default();
        for _ in 0..200 {
            policy.begin(&Extent::new(samples, 100 * samples));
            let size = policy.size(samples);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(0), Some(1050 * room));
            completed.peak = Some(1000 * size as u64);
            let elapsed = Duration::from_micros(10 * size.max(fastest) as u64);
            policy.timed(&Extent::new(size, 100 * size), Regions::None, elapsed);
            policy.succeeded(&completed);
        }
        assert_eq!(policy.size(samples), fastest);
        assert_eq!(plan(&policy).reason, Reason::Speed);
    }
}

/// Within one long batch, as in an evaluation, more room is timed at once.
#[test]
fn a_wider_room_is_timed_within_a_batch() {
    let mut policy = Predictive::default();
    policy.begin(&Extent::new(1 << 20, 1 << 20));
    let mut largest = |limit: u64| {
        let sizes = (0..400).map(|_| {
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(0), Some(limit));
            policy.prepare(&now);
            let size = policy.size(1 << 20);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (now.in_use, now.limit);
            completed.peak = Some(1000 + 10 * size as u64);
            // Sizes below 256 are equally fast, larger ones are faster.
            let elapsed = Duration::from_micros(if size < 256 { 20 } else { 10 } * size as u64);
            policy.timed(&Extent::new(size, size), Regions::None, elapsed);
            policy.succeeded(&completed);
            size
        });
        sizes.max().unwrap()
    };
    assert!(largest(2000) < 100);
    assert!(largest(20_000) > 1000);
    assert!(policy.size(1 << 20) >= 256);
}

/// Each halving is slower by 1.4 %: one is allowed, two are not.
#[test]
fn small_losses_do_not_add_up() {
    assert_eq!(settle(1000, |size, _| size * size.powf(-0.02)), 512);
}

#[test]
fn a_choice_made_on_a_busy_device_is_reconsidered() {
    let seconds = |size: f64, index: usize| match index {
        0..60 => 2. * (size + 200.),
        _ => size + 200.,
    };
    assert_eq!(settle(6000, seconds), 1024);
}

/// Time is wanted only where it leads on: for 1024 down to 32, and for what tells that one of them is settled.
#[test]
fn few_micro_batches_are_timed() {
    let mut policy = Predictive::default();
    let mut asked = 0;
    for _ in 0..1000 {
        if let (_, Some(micro_batch)) = run(&mut policy, 1024, 1) {
            let size = micro_batch.samples as f64;
            policy.timed(
                &micro_batch,
                Regions::None,
                Duration::from_secs_f64(size / size.min(64.)),
            );
            asked += 1;
        }
    }
    assert_eq!(policy.size(1024), 64);
    assert!((48..=90).contains(&asked), "{asked}");
}
