//! Devices on which nothing is measured: only a failure tells that a size does not fit.

use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, Resource};
use candle_headroom::{Predictive, ResourceExhausted};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::run;
use crate::curves::{Curve, Device};
use crate::steps::Step;

/// Steps within which the size has to follow, and the part of what could be used that it has to reach.
const STEPS: usize = 10;
const REACHED: f64 = 0.95;

/// Runs a batch of `samples` for each of `rooms` steps with room for a number of samples.
fn steps(samples: usize, rooms: &[(usize, usize)]) -> Vec<Step> {
    let mut from = 0;
    let mut starts = Vec::new();
    for (steps, room) in rooms {
        starts.push((from, *room));
        from += steps;
    }
    let curve = Curve {
        base: 0.,
        rooms: starts,
        is_blind: true,
        ..Curve::affine(samples, 0)
    };
    run(
        &mut Predictive::default(),
        &mut Device::new(&curve, 1),
        from,
    )
}

/// The largest size in use as a part of the best one: the batch in as few parts as fit, all of them even.
fn used(step: &Step, samples: usize, room: usize) -> f64 {
    let best = samples.div_ceil(samples.div_ceil(room.min(samples)));
    step.largest() as f64 / best as f64
}

/// Checks the steps after a change to `room`: the size is reached in time, with at most `failures` failures until then.
fn assert_reached(steps: &[Step], samples: usize, room: usize, failures: usize) {
    let reached = steps
        .iter()
        .position(|step| used(step, samples, room) >= REACHED);
    let largest: Vec<_> = steps.iter().map(Step::largest).collect();
    assert!(
        reached.is_some_and(|reached| reached <= STEPS),
        "{samples} with room for {room}: {largest:?}"
    );
    let until = &steps[..=reached.unwrap_or(0)];
    let failed: Vec<_> = until.iter().flat_map(|step| step.failed.clone()).collect();
    assert!(
        failed.len() <= failures,
        "{samples}, {room}: {failed:?} of {largest:?}"
    );
}

/// Samples of failed micro-batches for each sample that was needed.
fn wasted(steps: &[Step]) -> f64 {
    let failed: usize = steps.iter().flat_map(|step| &step.failed).sum();
    let needed: usize = steps.iter().flat_map(|step| &step.sizes).sum();
    failed as f64 / needed as f64
}

/// The bound that the documentation of `Predictive` states: one failed probe of the batch in one part less, in as many
/// batches as lie between two of them.
fn most_wasted(samples: usize, room: usize) -> f64 {
    match samples.div_ceil(room) {
        0 | 1 => 0.,
        2 => 1. / 9.,
        3 => 1. / 18.,
        4 => 1. / 24.,
        _ => 1. / 32.,
    }
}

#[test]
fn room_that_has_come_back_after_a_long_time_is_used_within_ten_steps() {
    let steps = steps(512, &[(90, 24), (40, 140)]);
    assert_reached(&steps[90..], 512, 140, 1);
}

#[test]
fn more_room_is_used_whatever_the_factor_and_however_long_there_was_less() {
    for samples in [64, 100, 512, 2048] {
        for room in [4, 7, 24, 60, 100, 333] {
            for factor in [1.2, 1.5, 2., 3., 5., 8., 13., 20.] {
                for steps_before in [20, 41, 87, 300] {
                    let more = (room as f64 * factor) as usize;
                    let steps = steps(samples, &[(steps_before, room), (20, more)]);
                    assert_reached(&steps[steps_before..], samples, more, 1);
                }
            }
        }
    }
}

#[test]
fn room_that_shrinks_and_comes_back_is_followed_down_and_up() {
    for (samples, room, less) in [
        (512, 140, 24),
        (512, 600, 200),
        (64, 64, 3),
        (300, 299, 150),
    ] {
        for held in [12, 30, 99] {
            let steps = steps(samples, &[(40, room), (held, less), (20, room)]);
            let down = (room as f64 / less as f64).log2().ceil() as usize + 1;
            assert_reached(&steps[40..40 + held], samples, less, down + 1);
            assert_reached(&steps[40 + held..], samples, room, 1);
        }
    }
}

#[test]
fn a_batch_that_was_one_micro_batch_is_one_again() {
    for samples in [2, 3, 16, 500] {
        let steps = steps(
            samples,
            &[(5, samples), (33, samples.div_ceil(2)), (15, samples)],
        );
        assert_eq!(steps[4].sizes, [samples]);
        assert_reached(&steps[38..], samples, samples, 1);
        assert_eq!(steps[52].sizes, [samples]);
    }
}

#[test]
fn room_that_goes_up_and_down_costs_few_failures() {
    let rooms: Vec<_> = (0..20).map(|index| (15, [140, 60][index % 2])).collect();
    let steps = steps(512, &rooms);
    // Each time at most two on the way down, one on the way up, and one of a probe on either level.
    let failures: usize = steps.iter().map(|step| step.failed.len()).sum();
    assert!(failures <= 5 * rooms.len(), "{failures}");
    for (index, stretch) in steps.chunks(15).enumerate().skip(1) {
        assert_reached(stretch, 512, rooms[index].1, 4);
    }
}

#[test]
fn room_that_stays_small_costs_a_bounded_part_of_the_work() {
    for (samples, room) in [
        (64, 40),
        (64, 25),
        (64, 20),
        (512, 100),
        (512, 24),
        (2048, 3),
    ] {
        let steps = steps(samples, &[(400, room)]);
        let (wasted, most) = (wasted(&steps[100..]), most_wasted(samples, room));
        assert!(wasted <= most * 1.02, "{wasted} of {samples}, {room}");
        let failures = steps[100..].iter().flat_map(|step| &step.failed).count();
        assert!(failures <= 300 / 4 + 1, "{failures} of {samples}, {room}");
    }
}

/// Batches of several lengths: room that one of them has found is used by the others as soon as they come.
#[test]
fn a_shape_that_found_room_leads_the_others() {
    for lengths in [
        vec![1., 1.5, 2.2],
        vec![1., 1.3, 1.7, 2.2, 2.9, 3.8, 4.9, 6.4],
    ] {
        let shapes = lengths.len();
        let (less, more) = (14 * shapes, 40 * shapes);
        let curve = Curve {
            base: 0.,
            rooms: vec![(0, 200), (less, 50), (more, 200)],
            lengths,
            is_blind: true,
            ..Curve::affine(512, 0)
        };
        let mut device = Device::new(&curve, 1);
        let steps = run(&mut Predictive::default(), &mut device, more + 13 * shapes);
        for (index, length) in curve.lengths.iter().enumerate() {
            let room = (200. / length) as usize;
            let of_shape = steps[more..].iter().skip(index).step_by(shapes);
            let of_shape: Vec<_> = of_shape.cloned().collect();
            assert_reached(&of_shape, 512, room, 2);
        }
    }
}

/// A neighbour that the policy is told about: the size is tried again soon.
#[test]
fn a_failure_that_others_caused_is_forgotten_soon() {
    let mut policy = Predictive::default();
    let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
    policy.begin(&Extent::new(64, 64));
    for _ in 0..5 {
        policy.failed(&Failed::new(64, &exhausted).passing(true));
        let waited = (0..100).take_while(|_| {
            let size = policy.size(64);
            policy.succeeded(&Completed::new(size));
            size < 64
        });
        assert!(waited.count() <= 16);
    }
}

proptest! {
    // The bounds are measured, not proven, so the cases are the same in each run.
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 64, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(192) })]

    #[test]
    fn any_room_is_followed_at_a_bounded_cost(
        samples in prop_oneof![1usize..64, 64usize..2048],
        rooms in prop::collection::vec((STEPS + 5..60, prop_oneof![1usize..40, 40usize..2500]), 1..6),
    ) {
        let steps = steps(samples, &rooms);
        let (mut from, mut before) = (0, samples);
        for (held, room) in rooms {
            let stretch = &steps[from..from + held];
            // Down by halves, then the way up to what fits.
            let down = (before as f64 / room as f64).max(1.).log2().ceil() as usize;
            let failures = if room < before { down + 2 } else { 1 };
            assert_reached(stretch, samples, room, failures);
            let wasted = wasted(&stretch[STEPS..]) * (held - STEPS) as f64;
            // One probe may have waited since before these steps.
            let most = most_wasted(samples, room) * (held - STEPS) as f64 + 1.;
            prop_assert!(wasted <= most, "{wasted} {most} of {samples}, {room}");
            (from, before) = (from + held, room);
        }
        for step in &steps {
            prop_assert_eq!(step.sizes.iter().sum::<usize>(), samples);
        }
    }
}
