//! `Halving`: halves what fails, doubles what fits twice, and remembers sizes as cost.

use candle_headroom::ResourceExhausted;
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed, Halving};
use candle_headroom::error::{Cause, MemoryReading, Resource};

fn completed(size: usize, before: u64, peak: u64, limit: u64) -> Completed {
    let mut completed = Completed::new(size);
    (completed.before, completed.peak, completed.limit) = (Some(before), Some(peak), Some(limit));
    completed
}

fn unknown(size: usize) -> Completed {
    Completed::new(size)
}

fn fail(policy: &mut Halving, size: usize) {
    let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Unknown);
    policy.failed(&Failed::new(size, &exhausted));
}

#[test]
fn it_doubles_only_while_twice_what_it_took_fits() {
    let mut policy = Halving::builder().start(1).build().unwrap();
    // 100 in use before; 10 a sample; a limit of 190 has room for 9 samples, so for 8.
    for expected in [2, 4, 8, 8, 8] {
        let size = policy.size(64);
        policy.succeeded(&completed(size, 100, 100 + 10 * size as u64, 190));
        assert_eq!(policy.size(64), expected);
    }
}

#[test]
fn less_room_reduces_the_size_before_it_is_overrun() {
    let mut policy = Halving::builder().start(1).build().unwrap();
    for size in [1, 2, 4, 8] {
        policy.succeeded(&completed(size, 100, 100 + 10 * size as u64, 1000));
    }
    assert_eq!(policy.size(64), 16);
    policy.succeeded(&completed(16, 100, 260, 1000));
    let mut now = MemoryReading::default();
    (now.in_use, now.limit) = (Some(100), Some(1000));
    policy.prepare(&now);
    assert_eq!(policy.size(64), 32, "there is room for 90");
    now.limit = Some(150);
    policy.prepare(&now);
    assert_eq!(policy.size(64), 4, "there is room for 5");
    now.limit = Some(100);
    policy.prepare(&now);
    assert_eq!(policy.size(64), 1);
}

#[test]
fn a_raised_limit_is_used_at_once_and_an_overrun_shrinks() {
    let mut policy = Halving::builder().start(1).build().unwrap();
    policy.succeeded(&completed(1, 0, 10, 40));
    policy.succeeded(&completed(2, 0, 50, 40));
    assert_eq!(policy.size(64), 1);
    for _ in 0..10 {
        policy.succeeded(&completed(1, 0, 10, 40));
        assert_eq!(policy.size(64), 1, "2 has failed under this limit");
    }
    policy.succeeded(&completed(1, 0, 10, 400));
    assert_eq!(policy.size(64), 2);
}

#[test]
fn without_measurements_it_grows_back_later_each_time() {
    let mut policy = Halving::default();
    fail(&mut policy, 64);
    assert_eq!(policy.size(64), 32);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let mut wait = 0;
        while policy.size(64) == 32 {
            policy.succeeded(&unknown(32));
            wait += 1;
        }
        assert_eq!(policy.size(64), 64);
        waits.push(wait);
        fail(&mut policy, 64);
    }
    assert_eq!(waits, [32, 64, 128, 256, 512, 1024, 1024, 1024]);
}

#[test]
fn it_never_goes_above_the_largest_size() {
    let mut policy = Halving::builder().start(3).at_most(10).build().unwrap();
    for _ in 0..10 {
        policy.succeeded(&unknown(policy.size(64)));
    }
    assert_eq!(policy.size(64), 10);
    let start = Halving::builder().start(30).at_most(10).build().unwrap();
    assert_eq!(start.size(64), 10);
    assert!(Halving::builder().at_most(0).build().is_err());
    assert!(Halving::builder().start(0).build().is_err());
}

#[test]
fn it_never_goes_below_one() {
    let mut policy = Halving::builder().start(1).build().unwrap();
    fail(&mut policy, 1);
    assert_eq!(policy.size(64), 1);
}

/// 64 short texts fit; texts ten times as long are cut into smaller micro-batches without a failure.
#[test]
fn longer_samples_are_cut_into_smaller_micro_batches() {
    let mut policy = Halving::builder().start(64).build().unwrap();
    policy.begin(&Extent::new(64, 64 * 10));
    assert_eq!(policy.size(64), 64);
    policy.succeeded(&completed(64, 0, 640, 1000));
    policy.begin(&Extent::new(64, 64 * 100));
    assert_eq!(policy.size(64), 6);
    policy.begin(&Extent::new(64, 64 * 10_000));
    assert_eq!(policy.size(64), 1);
    policy.begin(&Extent::new(64, 64 * 10));
    assert_eq!(policy.size(64), 64);
}

/// The largest size is one of samples like the first ones.
#[test]
fn the_largest_size_shrinks_for_longer_samples() {
    let mut policy = Halving::builder().at_most(32).build().unwrap();
    policy.begin(&Extent::new(32, 320));
    assert_eq!(policy.size(32), 32);
    policy.succeeded(&completed(32, 0, 640, 1000));
    policy.begin(&Extent::new(32, 3200));
    assert_eq!(policy.size(32), 3);
    policy.begin(&Extent::new(32, 320));
    assert_eq!(policy.size(32), 32);
}

/// A neighbour that comes and goes does not make it wait longer each time.
#[test]
fn a_failure_that_others_caused_does_not_add_up() {
    let mut policy = Halving::default();
    let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
    for _ in 0..5 {
        policy.failed(&Failed::new(64, &exhausted).passing(true));
        for _ in 0..32 {
            assert_eq!(policy.size(64), 32);
            policy.succeeded(&unknown(32));
        }
        assert_eq!(policy.size(64), 64);
    }
}
