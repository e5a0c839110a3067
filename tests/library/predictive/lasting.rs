//! Over many steps sizes do not oscillate, failures do not repeat, and no size is avoided for ever.

use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, Resource};
use candle_headroom::{Predictive, ResourceExhausted};

use super::{changes, failures, run};
use crate::curves::{Curve, Device};
use crate::steps::step;

/// Many sizes were seen, so that small ones are forgotten. The base is then known from large ones.
#[test]
fn a_limit_far_below_what_is_remembered_is_met() {
    let curve = Curve {
        base: 1000.,
        rooms: vec![(0, 1000), (60, 20)],
        ..Curve::affine(1024, 1000)
    };
    let mut device = Device::new(&curve, 1);
    let mut policy = Predictive::default();
    for index in 0..60 {
        device.curve.batch = 300 + 37 * (index * 7 % 40);
        step(&mut policy, &mut device);
    }
    device.curve.batch = 1024;
    // Resumed or not.
    let mut resumed = Predictive::default();
    resumed.load_state(&policy.state().unwrap()).unwrap();
    for mut policy in [policy, resumed] {
        let low = step(&mut policy, &mut device.clone());
        assert_eq!(low.failed, [0; 0]);
        assert!(low.largest() >= 9, "{low:?}");
    }
}

/// Short and long samples; the long ones never ran in small micro-batches.
#[test]
fn a_limit_far_below_what_was_seen_of_a_length_is_met() {
    let curve = Curve {
        base: 400.,
        rooms: vec![(0, 250), (40, 40)],
        lengths: vec![1., 0.4],
        ..Curve::affine(613, 250)
    };
    let steps = run(&mut Predictive::default(), &mut Device::new(&curve, 1), 60);
    assert_eq!(failures(&steps), 0);
}

/// A failure that does not repeat, without measurements and with samples that cost more than 1.
#[test]
fn what_failed_once_is_used_again() {
    for each in [1, 100] {
        for batch in [2, 4, 8, 16] {
            let mut policy = Predictive::default();
            policy.begin(&Extent::new(batch, batch * each));
            let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Unknown);
            policy.failed(&Failed::new(batch, &exhausted));
            assert_eq!(policy.size(batch), batch / 2);
            for _ in 0..400 {
                policy.succeeded(&Completed::new(policy.size(batch)));
            }
            assert_eq!(policy.size(batch), batch, "{each}");
        }
    }
}

/// 15 samples would fit on the straight line, but a workspace makes 13 too large.
#[test]
fn what_never_fits_is_tried_less_and_less() {
    let curve = Curve {
        base: 10.,
        workspace: Some((13, 8.)),
        ..Curve::affine(2048, 7)
    };
    let steps = run(&mut Predictive::default(), &mut Device::new(&curve, 1), 300);
    assert_eq!(steps[299].largest(), 12);
    assert!(failures(&steps[..100]) <= 6, "{}", failures(&steps[..100]));
    assert!(failures(&steps[100..]) <= 2, "{}", failures(&steps[100..]));
}

/// Small sizes all take the same, so nothing is known about larger ones.
#[test]
fn a_flat_stretch_is_not_taken_for_the_curve() {
    for (flat, room) in [(40., 63), (100., 130), (200., 900)] {
        let curve = Curve {
            base: 2.,
            flat,
            ..Curve::affine(4096, room)
        };
        let steps = run(&mut Predictive::default(), &mut Device::new(&curve, 1), 5);
        assert_eq!(failures(&steps), 0, "{flat}");
        let most_parts = 4096usize.div_ceil(room * 95 / 100);
        assert!(steps[4].sizes.len() <= most_parts, "{flat} {:?}", steps[4]);
    }
}

/// Peaks in steps, and a workspace between the costs that were seen: the slope across it does not continue.
#[test]
fn a_step_between_two_sizes_is_no_slope() {
    let curve = Curve {
        base: 122.,
        rounding: 3.63,
        workspace: Some((103, 51.3)),
        ..Curve::affine(658, 117)
    };
    let steps = run(&mut Predictive::default(), &mut Device::new(&curve, 1), 40);
    assert_eq!(failures(&steps), 0);
    assert!(changes(&steps[2..]) <= 1, "{}", changes(&steps[2..]));
}
