//! The size that `Predictive` settles on, and how many steps that takes.

use candle_headroom::Predictive;
use candle_headroom::batch::{BatchPolicy, Completed, Extent};
use candle_headroom::error::MemoryReading;

use super::{changes, failures, run};
use crate::curves::{Curve, Device};

#[test]
fn it_finds_the_largest_size_in_one_step_and_cuts_evenly() {
    for (batch, room, settled) in [
        (128, 100, 64),
        (1024, 300, 256),
        (2048, 37, 36),
        (100, 64, 50),
    ] {
        let mut device = Device::new(&Curve::affine(batch, room), 1);
        let mut policy = Predictive::default();
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
fn it_settles_near_the_best_size_on_every_kind_of_device() {
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
        let mut policy = Predictive::default();
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
fn a_raised_limit_is_used_at_once() {
    let curve = Curve {
        rooms: vec![(0, 300), (10, 120), (20, 600)],
        ..Curve::affine(1024, 300)
    };
    let mut device = Device::new(&curve, 1);
    let steps = run(&mut Predictive::default(), &mut device, 30);
    assert_eq!(failures(&steps), 0);
    assert_eq!((steps[9].largest(), steps[10].largest()), (256, 114));
    assert_eq!(steps[21].largest(), 512);
}

/// As in attention, samples that are twice as long take four times as much.
#[test]
fn longer_samples_do_not_exceed_the_limit() {
    let mut policy = Predictive::default();
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
    step(512, 640); // a token takes as many times more as the samples are longer
    assert!(step(64, 10) >= 128, "short samples are remembered");
}
