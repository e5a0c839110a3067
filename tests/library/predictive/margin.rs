//! How much of the room is left free: what was asked for, or little where that saves a part.

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

#[test]
fn the_last_percent_is_used_where_that_saves_a_part() {
    for (batch, room) in [(16, 8), (4, 4), (3, 3), (64, 32), (100, 34), (128, 16)] {
        let curve = Curve::affine(batch, room);
        let best = batch.div_ceil(batch.div_ceil(room));
        assert_eq!(settled(&curve, &mut Predictive::default()), best, "{batch}");
        // A hundredth of this room is less than a sample, so that with it free one sample fewer fits.
        let mut asked = Predictive::builder()
            .margin(0.01)
            .build()
            .expect("a policy");
        assert!(settled(&curve, &mut asked) < best, "{batch}");
    }
    // 56 parts in place of 57 are no gain.
    let curve = Curve::affine(2048, 37);
    assert_eq!(settled(&curve, &mut Predictive::default()), 36);
}

/// Peaks scatter by as much as the margin.
#[test]
fn it_is_left_free_where_peaks_scatter() {
    for (batch, room) in [(16, 8), (64, 32), (100, 34)] {
        let curve = Curve {
            noise: 0.01,
            ..Curve::affine(batch, room)
        };
        for seed in 0..20 {
            let mut asked = Predictive::builder()
                .margin(0.01)
                .build()
                .expect("a policy");
            let [found, expected] = [&mut Predictive::default(), &mut asked]
                .map(|policy| run(policy, &mut Device::new(&curve, seed), 100));
            assert_eq!(found, expected, "{batch}, seed {seed}");
        }
    }
}

/// A workspace from 8 samples on. The line through fewer says that 8 take all but 0.1 samples.
#[test]
fn a_size_that_fails_there_is_tried_less_and_less() {
    let curve = Curve {
        workspace: Some((8, 1.1)),
        ..Curve::affine(16, 7)
    };
    let steps = run(
        &mut Predictive::default(),
        &mut Device::new(&curve, 1),
        1000,
    );
    let failed: Vec<_> = (steps.iter().enumerate())
        .filter(|(_, step)| !step.failed.is_empty())
        .collect();
    assert!(failed.iter().all(|(_, step)| step.failed == [8]));
    // 3 micro-batches in a step: the failures are 128, 512 and 2,048 micro-batches apart.
    let at: Vec<_> = failed.iter().map(|(index, _)| *index).collect();
    assert!((3..=4).contains(&at.len()), "{at:?}");
    let apart: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(apart[0] >= 128 / 3, "{at:?}");
    assert!(apart.windows(2).all(|pair| pair[1] > 3 * pair[0]), "{at:?}");
    assert_eq!(steps[999].largest(), 6);
}

/// A limit that is not enforced: what went over it once is known.
#[test]
fn a_size_that_goes_over_a_soft_limit_there_is_not_used_again() {
    let (mut policy, mut over) = (Predictive::default(), 0);
    for _ in 0..1000 {
        policy.begin(&Extent::new(16, 16));
        let mut done = 0;
        while done < 16 {
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(0), Some(10_000));
            policy.prepare(&now);
            let mut completed = Completed::new(policy.size(16 - done));
            (completed.before, completed.limit) = (now.in_use, now.limit);
            let size = completed.size as u64;
            completed.peak = Some(6000 + 495 * size + if size < 8 { 0 } else { 100 });
            over += usize::from(completed.is_over_limit());
            policy.succeeded(&completed);
            done += completed.size;
        }
    }
    assert_eq!(over, 1);
    assert_eq!(policy.size(16), 6);
}
