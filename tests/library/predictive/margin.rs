//! How much of the room is left free.

use candle_headroom::Predictive;
use candle_headroom::batch::{BatchPolicy, Completed, Extent};
use candle_headroom::error::MemoryReading;

use super::{changes, failures, run};
use crate::curves::{Curve, Device};

/// A line with a base of 20 samples, on which `room` samples take all that there is.
fn settled(curve: &Curve, policy: &mut Predictive) -> usize {
    let steps = run(policy, &mut Device::new(curve, 1), 60);
    assert_eq!(failures(&steps), 0, "{}", curve.batch);
    assert_eq!(changes(&steps[40..]), 0, "{}", curve.batch);
    steps[59].largest()
}

/// A hundredth of this room is less than a sample, so that with it free one sample fewer fits.
#[test]
fn one_percent_is_left_free() {
    for (batch, room) in [(16, 8), (4, 4), (64, 32), (100, 34), (128, 16), (2048, 37)] {
        let curve = Curve::affine(batch, room);
        let expected = batch.div_ceil(batch.div_ceil(room - 1));
        assert_eq!(
            settled(&curve, &mut Predictive::default()),
            expected,
            "{batch}"
        );
    }
}

/// Half of the batch needs 90 to 99 % of the room, and is used in each, though the line was not verified by a much larger size.
#[test]
fn more_room_never_means_a_smaller_size() {
    for (batch, base) in [
        (4, 20),
        (8, 2),
        (16, 8),
        (16, 40),
        (64, 32),
        (64, 200),
        (100, 50),
    ] {
        let takes = |size: u64| 1_000_000 * (base + size);
        let half = usize::div_ceil(batch, 2);
        for part in 900..990 {
            let limit = takes(half as u64) * 1000 / part;
            let mut policy = Predictive::default();
            let mut largest = 0;
            for _ in 0..100 {
                largest = batch_on(&mut policy, batch, limit, takes);
            }
            assert!(
                largest >= half,
                "{largest} of {batch} with a base of {base}: {part} of 1000"
            );
        }
    }
}

/// Where peaks vary by 4 %, a room that grows by 8 % is no reason for another size, which would swing. One that grows by half is.
#[test]
fn more_room_than_peaks_vary_is_used_and_less_is_not() {
    let mut policy = Predictive::default();
    let mut runs = 0;
    let mut size_within = |limit: u64, batch: usize| {
        policy.begin(&Extent::new(batch, batch));
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(0), Some(limit));
        policy.prepare(&now);
        let mut completed = Completed::new(policy.size(batch));
        (completed.before, completed.limit) = (now.in_use, now.limit);
        runs += 1;
        let varied = if runs % 2 == 0 { 104 } else { 96 };
        completed.peak = Some(10_000 * (100 + completed.size as u64) * varied);
        policy.succeeded(&completed);
        completed.size
    };
    let (limit, batch) = (10_000_000_000, 1 << 30);
    // Batches that fit, so that nothing has to be avoided later.
    for run in 0..300 {
        size_within(limit, 2000 + run % 3 * 1000);
    }
    for _ in 0..300 {
        size_within(limit, batch);
    }
    let size = size_within(limit, batch);
    assert!((6_000..10_000).contains(&size), "{size}");
    for _ in 0..10 {
        assert_eq!(size_within(limit / 100 * 108, batch), size);
    }
    let larger = size_within(limit / 2 * 3, batch);
    assert!(larger > size + size / 4, "{size}, then {larger}");
}

/// Runs a batch on a device with a soft limit, and returns its largest micro-batch.
fn batch_on(
    policy: &mut Predictive,
    batch: usize,
    limit: u64,
    takes: impl Fn(u64) -> u64,
) -> usize {
    policy.begin(&Extent::new(batch, batch));
    let (mut done, mut largest) = (0, 0);
    while done < batch {
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(0), Some(limit));
        policy.prepare(&now);
        let mut completed = Completed::new(policy.size(batch - done));
        (completed.before, completed.limit) = (now.in_use, now.limit);
        completed.peak = Some(takes(completed.size as u64));
        policy.succeeded(&completed);
        done += completed.size;
        largest = largest.max(completed.size);
    }
    largest
}
