//! `Predictive` on devices that exist as numbers only: how often it fails, where it settles, and that it stays there.

#[path = "../benches/adaptation/curves.rs"]
mod curves;

use candle_headroom::{
    BatchPolicy, Cause, Completed, Decay, Error, Extent, Failed, MemoryReading, PolicyError,
    Predictive, Reason, Resource, ResourceExhausted,
};
use curves::{Curve, Device};
use proptest::prelude::*;

/// What one step took.
#[derive(Debug, Default, Clone, PartialEq)]
struct Step {
    sizes: Vec<usize>,
    failures: usize,
}

impl Step {
    fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

/// One step of the device's batch, told to the policy as a trainer does.
fn step(policy: &mut dyn BatchPolicy, device: &mut Device) -> Step {
    let total = device.curve.batch;
    let cost = (total as f64 * 100. * device.length()) as usize;
    let limit = device.limit() as u64;
    policy.begin(&Extent::new(total, cost));
    let (mut step, mut done) = (Step::default(), 0);
    while done < total {
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(device.in_use as u64), Some(limit));
        policy.prepare(&now);
        let size = policy.size(total - done);
        assert!((1..=total - done).contains(&size), "{size}");
        match device.run(size) {
            Some(peak) => {
                let mut completed = Completed::new(size);
                (completed.before, completed.limit) = (now.in_use, now.limit);
                completed.peak = Some(peak);
                completed.forward_peak = now.in_use.map(|bytes| bytes + device.forward(size));
                policy.succeeded(&completed);
                step.sizes.push(size);
                done += size;
            }
            None => {
                let cause = Cause::Limit;
                let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, cause);
                exhausted.bytes = now;
                policy.failed(&Failed::new(size, &exhausted));
                assert!(policy.size(total - done) < size, "one sample always fits");
                step.failures += 1;
            }
        }
    }
    device.step += 1;
    step
}

fn run(policy: &mut dyn BatchPolicy, device: &mut Device, steps: usize) -> Vec<Step> {
    (0..steps).map(|_| step(policy, device)).collect()
}

fn failures(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.failures).sum()
}

/// How often the size of a step's largest micro-batch was another one than the step before.
fn changes(steps: &[Step]) -> usize {
    let pairs = steps.windows(2);
    pairs
        .filter(|pair| pair[0].largest() != pair[1].largest())
        .count()
}

#[test]
fn it_goes_straight_to_the_largest_size_and_splits_evenly() {
    for (batch, room, settled) in [
        (128, 100, 64),
        (1024, 300, 256),
        (2048, 37, 36),
        (100, 64, 50),
    ] {
        let mut device = Device::new(&Curve::affine(batch, room), 1);
        let mut policy = Predictive::new();
        let steps = run(&mut policy, &mut device, 10);
        assert_eq!(failures(&steps), 0);
        assert_eq!(steps[9].largest(), settled, "{:?}", steps[9]);
        let least = steps[9].sizes.iter().min();
        assert!(
            least.is_some_and(|least| least + 1 >= settled),
            "{:?}",
            steps[9]
        );
        assert!(changes(&steps[1..]) <= 1, "settled in the second step");
    }
}

#[test]
fn it_meets_what_real_devices_do() {
    let affine = || Curve::affine(1024, 300);
    for curve in [
        Curve {
            name: "one-time",
            once: 100.,
            ..affine()
        },
        Curve {
            name: "noisy",
            noise: 0.02,
            ..affine()
        },
        Curve {
            name: "rounded",
            rounding: 6.,
            ..affine()
        },
        Curve {
            name: "workspace",
            workspace: Some((120, 40.)),
            ..affine()
        },
        Curve {
            name: "drifting",
            rooms: vec![(0, 300), (20, 120), (40, 600)],
            ..affine()
        },
        Curve {
            name: "shapes",
            lengths: vec![1., 1.7, 0.6, 2.5, 1.2, 3.9, 0.8],
            ..affine()
        },
    ] {
        let mut device = Device::new(&curve, 7);
        let mut policy = Predictive::new();
        let steps = run(&mut policy, &mut device, 60);
        device.step -= 1;
        let best = 1024usize.div_ceil(1024usize.div_ceil(device.room()));
        let used = steps[59].largest() as f64 / best as f64;
        println!(
            "{}: {} failures, {used:.3} of {best}, {} changes",
            curve.name,
            failures(&steps),
            changes(&steps)
        );
        assert!(failures(&steps) <= 1, "{}", curve.name);
        assert!(used >= 0.95, "{}: {used}", curve.name);
    }
}

#[test]
fn a_limit_that_comes_back_is_used_at_once() {
    let curve = Curve {
        rooms: vec![(0, 300), (10, 120), (20, 600)],
        ..Curve::affine(1024, 300)
    };
    let mut device = Device::new(&curve, 1);
    let steps = run(&mut Predictive::new(), &mut device, 30);
    assert_eq!(failures(&steps), 0);
    assert_eq!((steps[9].largest(), steps[10].largest()), (256, 114));
    assert_eq!(steps[21].largest(), 512);
}

#[test]
fn a_longer_batch_is_predicted_and_not_hit() {
    // Twice as long, and four times as much: attention.
    let mut policy = Predictive::new();
    let mut step = |length: usize, bytes: u64| {
        policy.begin(&Extent::new(256, 256 * length));
        let (mut sizes, mut done) = (Vec::new(), 0);
        while done < 256 {
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(0), Some(2000));
            policy.prepare(&now);
            let size = policy.size(256 - done);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(0), Some(2000));
            completed.peak = Some(100 + bytes * size as u64);
            assert!(!completed.is_over_limit(), "{size} of length {length}");
            policy.succeeded(&completed);
            sizes.push(size);
            done += size;
        }
        sizes.into_iter().max().unwrap()
    };
    for _ in 0..3 {
        step(64, 10);
    }
    assert!(step(64, 10) >= 128);
    for _ in 0..3 {
        step(128, 40);
    }
    assert!((40..=47).contains(&step(128, 40)), "{}", step(128, 40));
    step(512, 640); // by now it knows how much longer ones take more
    assert!(
        step(64, 10) >= 128,
        "what was known of short ones is known still"
    );
}

/// Sizes settle on the smallest that is as fast.
#[test]
fn the_fastest_size_not_the_largest() {
    use std::time::Duration;
    for (minds_speed, expected) in [(true, 32), (false, 128)] {
        let mut policy = match minds_speed {
            true => Predictive::new(),
            false => Predictive::new().regardless_of_speed(),
        };
        policy.begin(&Extent::new(128, 128));
        for _ in 0..200 {
            let size = policy.size(128);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(0), Some(4000));
            completed.peak = Some(100 + 10 * size as u64);
            // Faster for each sample up to 32, not above.
            let micros = 10_000 * size as u64 / size.min(32) as u64;
            completed.elapsed = Some(Duration::from_micros(micros));
            policy.succeeded(&completed);
        }
        assert_eq!(policy.size(128), expected);
        let plan = policy.plan().unwrap();
        match minds_speed {
            true => assert_eq!(plan.reason, Reason::Speed, "{plan}"),
            false => assert_eq!(plan.reason, Reason::Room, "{plan}"),
        }
    }
}

/// A device without a limit, on which a neighbour takes memory and gives it back.
#[test]
fn a_neighbour_is_made_room_for_and_gone_grown_back() {
    let mut policy = Predictive::new();
    let mut step = |neighbour: u64, is_told: bool| {
        let (mut done, mut failures, mut largest) = (0, 0, 0);
        policy.begin(&Extent::new(256, 256));
        while done < 256 {
            let mut now = MemoryReading::default();
            (now.in_use, now.reserved) = (Some(200), Some(200));
            now.free = is_told.then_some(3800 - neighbour);
            policy.prepare(&now);
            let size = policy.size(256 - done);
            let need = 100 + 10 * size as u64;
            if need > 3800 - neighbour {
                now.free = Some(3800 - neighbour);
                let cause = Cause::Neighbour;
                let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, cause);
                exhausted.bytes = now;
                policy.failed(&Failed::new(size, &exhausted));
                failures += 1;
                continue;
            }
            let mut completed = Completed::new(size);
            (completed.before, completed.peak) = (Some(200), Some(200 + need));
            policy.succeeded(&completed);
            largest = largest.max(size);
            done += size;
        }
        (largest, failures)
    };
    step(0, true);
    assert_eq!(step(0, true), (256, 0));
    assert_eq!(step(2000, true), (128, 0), "seen before it is hit");
    assert_eq!(
        step(0, true),
        (256, 0),
        "gone, and nothing is held against it"
    );
    let (largest, failures) = step(2000, false);
    assert_eq!(failures, 1, "hit in the middle of a batch");
    assert!(largest >= 86);
    assert_eq!(step(0, true), (256, 0));
}

#[test]
fn without_numbers_it_halves_and_goes_back_up() {
    let mut policy = Predictive::new();
    let mut step = |room: usize| {
        let (mut done, mut failures, mut sizes) = (0, 0, Vec::new());
        policy.begin(&Extent::new(64, 64));
        while done < 64 {
            let size = policy.size(64 - done);
            if size > room {
                let cause = Cause::Unknown;
                let exhausted = ResourceExhausted::new(Resource::DeviceMemory, cause);
                policy.failed(&Failed::new(size, &exhausted));
                failures += 1;
                continue;
            }
            policy.succeeded(&Completed::new(size));
            sizes.push(size);
            done += size;
        }
        (sizes, failures)
    };
    assert_eq!(step(20), (vec![16; 4], 2));
    let failures: usize = (0..200).map(|_| step(20).1).sum();
    assert!(failures <= 8, "{failures}");
    let steps = (0..600).take_while(|_| step(64).0 != [64]).count();
    assert!(steps < 600, "a ratchet");
}

#[test]
fn a_resumed_run_knows_what_the_first_one_learned() {
    let curve = Curve {
        once: 60.,
        lengths: vec![1., 2.],
        ..Curve::affine(1024, 300)
    };
    let mut first = Predictive::new();
    run(&mut first, &mut Device::new(&curve, 1), 20);
    let saved = first.save().unwrap();

    let mut resumed = Predictive::new();
    resumed.restore(&saved).unwrap();
    assert_eq!(resumed.save().unwrap(), saved);
    let steps = run(&mut resumed, &mut Device::new(&curve, 2), 2);
    assert_eq!(failures(&steps), 0);
    assert_eq!(
        steps[0].sizes[..3],
        [1, 1, 256],
        "what is allocated once, one sample, then at once"
    );
    assert_eq!(steps[1].largest(), 147, "the longer ones");
}

#[test]
fn bad_input_is_named() {
    for margin in [f64::NAN, -0.1, 0.95, f64::INFINITY] {
        let Err(Error::Policy(error)) = Predictive::new().margin(margin) else {
            panic!("{margin}");
        };
        assert!(matches!(*error, PolicyError::Margin { .. }), "{error}");
    }
    for factor in [f64::NAN, 0., 1., -1.] {
        let Err(Error::Policy(error)) = Decay::new(factor) else {
            panic!("{factor}");
        };
        assert!(error.to_string().contains("above 0 and below 1"), "{error}");
    }
    let mut policy = Predictive::new();
    for words in [
        "",
        "predictive 1",
        "predictive 2\n1 - 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n0 - 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n1 0 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n1 - 0 - - - -;0 NaN false;0 0 false",
        "predictive 1\n1 - 0 - - - -;1 0 false 0:5:1;0 0 false",
        "predictive 1\n1 - 0 - - - -;1 0 false 4:5:9;0 0 false",
        "predictive 1\n1 - 0 - - - -;1 0 false 4:5;0 0 false",
        "predictive 1\n1 - 0 - - - -;2 0 false 4:5:1 4:5:2;0 0 false",
        "predictive 1\n1 - 0 -;0 0 false;0 0 false",
        "predictive 1\n1 - 0 - - - - 7;0 0 false;0 0 false",
    ] {
        let Err(Error::Policy(error)) = policy.restore(words) else {
            panic!("{words}");
        };
        assert!(matches!(*error, PolicyError::Saved { .. }), "{error}");
    }
    assert_eq!(policy.size(64), 64, "nothing has changed");
}

fn rooms() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let room = prop_oneof![1usize..40, 40usize..700];
    [room.clone(), room.clone(), room].prop_map(|[a, b, c]| vec![(0, a), (33, b), (66, c)])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// It settles, stays where it is until the room changes, and seldom fails, whatever the device does.
    #[test]
    fn it_never_oscillates(
        batch in prop_oneof![1usize..64, 64usize..2048],
        base in 0f64..200.,
        once in 0f64..100.,
        noise in prop_oneof![Just(0f64), 0f64..0.03],
        rounding in prop_oneof![Just(0f64), 1f64..8.],
        workspace in prop_oneof![Just(None), (2usize..400, 1f64..60.).prop_map(Some)],
        rooms in rooms(),
        seed in any::<u64>(),
    ) {
        let curve = Curve {
            name: "random",
            batch,
            base,
            once,
            noise,
            rounding,
            workspace,
            rooms,
            lengths: vec![1.],
        };
        let mut device = Device::new(&curve, seed);
        let steps = run(&mut Predictive::new(), &mut device, 100);
        prop_assert!(changes(&steps) <= 30, "{} changes {:?}", changes(&steps), steps.iter().map(Step::largest).collect::<Vec<_>>());
        prop_assert!(failures(&steps) <= 16, "{} failures", failures(&steps));
        for step in &steps {
            prop_assert_eq!(step.sizes.iter().sum::<usize>(), batch);
        }
    }

    /// On a straight line it never fails and ends where it should.
    #[test]
    fn a_straight_line_costs_no_failure(
        batch in 1usize..2048,
        share in 0f64..2.,
        room in 4usize..700,
    ) {
        let base = share * room as f64;
        let curve = Curve { base, ..Curve::affine(batch, room) };
        let mut device = Device::new(&curve, 1);
        let steps = run(&mut Predictive::new(), &mut device, 40);
        prop_assert_eq!(failures(&steps), 0);
        prop_assert!(changes(&steps[20..]) == 0);
        let all = room as f64 + base;
        // A hundredth of the room is left free, and the last hundredths are not worth a change.
        let least = (0.99 * all - base) * 0.97 - 1.;
        let parts = batch.div_ceil((least as usize).max(1));
        prop_assert!(steps[39].sizes.len() <= parts, "{} of {parts}", steps[39].sizes.len());
    }
}
