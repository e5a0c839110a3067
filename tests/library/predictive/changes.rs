//! What was learned is no longer true.

use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, MemoryReading, Resource};
use candle_headroom::{Predictive, ResourceExhausted};

use super::{failures, run};
use crate::curves::{Curve, Device};

/// A device with a soft limit: a micro-batch that exceeds it finishes. `over` is the highest peak divided by the limit.
struct Soft {
    limit: u64,
    over: f64,
}

impl Soft {
    fn new(limit: u64) -> Self {
        Self { limit, over: 0. }
    }

    /// One batch of samples that cost `each` and take `bytes(size)`; returns the sizes.
    fn step(
        &mut self,
        policy: &mut dyn BatchPolicy,
        samples: usize,
        each: usize,
        mut bytes: impl FnMut(usize) -> u64,
    ) -> Vec<usize> {
        policy.begin(&Extent::new(samples, samples * each));
        let (mut sizes, mut done) = (Vec::new(), 0);
        while done < samples {
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(0), Some(self.limit));
            policy.prepare(&now);
            let size = policy.size(samples - done);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(0), Some(self.limit));
            let peak = bytes(size);
            completed.peak = Some(peak);
            self.over = self.over.max(peak as f64 / self.limit as f64);
            policy.succeeded(&completed);
            sizes.push(size);
            done += size;
        }
        sizes
    }
}

/// A sample takes ten times the bytes, at sizes that were never seen before.
#[test]
fn heavier_samples_are_learned_anew() {
    let (mut policy, mut device) = (Predictive::default(), Soft::new(100 << 20));
    for _ in 0..3 {
        device.step(&mut policy, 4000, 1, |size| (256 << 10) * size as u64);
    }
    for _ in 0..2 {
        let sizes = device.step(&mut policy, 4000, 1, |size| (2560 << 10) * size as u64);
        assert!(
            sizes[1..].iter().all(|size| (36..=40).contains(size)),
            "{sizes:?}"
        );
    }
    let plan = policy.plan().unwrap();
    assert!((38..=40).contains(&plan.fits.unwrap()), "{plan}");
    // More room does not bring the old sizes back.
    (device.limit, device.over) = (115 << 20, 0.);
    device.step(&mut policy, 4000, 1, |size| (2560 << 10) * size as u64);
    assert!(device.over <= 1., "{}", device.over);
}

#[test]
fn a_large_base_does_not_keep_it_at_one_sample() {
    for share in [0.45, 0.52, 0.6, 0.8, 0.9] {
        let curve = Curve {
            base: share / (1. - share) * 200.,
            ..Curve::affine(1024, 200)
        };
        let steps = run(&mut Predictive::default(), &mut Device::new(&curve, 1), 8);
        assert_eq!(failures(&steps), 0, "{share}");
        assert!(steps[7].largest() >= 171, "{share} {:?}", steps[7]);
    }
}

/// A lowered limit and samples of a new length in one step.
#[test]
fn a_lowered_limit_counts_for_a_new_shape() {
    let (mut policy, mut device) = (Predictive::default(), Soft::new(2000));
    for length in [64, 128] {
        for _ in 0..5 {
            device.step(&mut policy, 256, length, |size| {
                100 + (size * length / 6) as u64
            });
        }
    }
    (device.limit, device.over) = (600, 0.);
    device.step(&mut policy, 256, 256, |size| 100 + 43 * size as u64);
    assert!(device.over <= 1., "{}", device.over);
}

/// Its sizes are used at first, so that a resumed run does the same as an uninterrupted one. That exceeds a soft limit once.
#[test]
fn another_models_state_does_harm_once() {
    for times in [3, 5, 10] {
        let (mut first, mut device) = (Predictive::default(), Soft::new(100 << 20));
        for _ in 0..5 {
            device.step(&mut first, 256, 1, |size| (size as u64) << 20);
        }
        let mut resumed = Predictive::default();
        resumed.load_state(&first.state().unwrap()).unwrap();
        let mut over = 0;
        let mut bytes = |size: usize| {
            let bytes = (times * size as u64) << 20;
            over += usize::from(bytes > 100 << 20);
            bytes
        };
        device.step(&mut resumed, 256, 1, &mut bytes);
        let sizes = device.step(&mut resumed, 256, 1, &mut bytes);
        assert!(over <= 1, "{times} {over} {sizes:?}");
        let most = 100 / times as usize;
        let rest = &sizes[..sizes.len() - 1];
        let is_used = |size: &usize| (most * 8 / 10..=most).contains(size);
        assert!(rest.iter().all(is_used), "{times} {sizes:?}");
    }
}

#[test]
fn after_a_wrong_prediction_the_measured_peak_decides() {
    let (mut policy, mut device) = (Predictive::default(), Soft::new(1000));
    for _ in 0..4 {
        device.step(&mut policy, 100, 1, |size| 10 * size as u64);
    }
    // The failed micro-batch needed eight times the limit.
    let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
    let bytes = &mut exhausted.bytes;
    (bytes.in_use, bytes.peak, bytes.limit) = (Some(0), Some(8000), Some(1000));
    policy.failed(&Failed::new(96, &exhausted));
    assert!(
        (10..=12).contains(&policy.size(100)),
        "{}",
        policy.size(100)
    );
}

#[test]
fn below_one_sample_there_is_no_smaller_size() {
    let mut policy = Predictive::default();
    policy.begin(&Extent::new(64, 64));
    let mut now = MemoryReading::default();
    (now.in_use, now.limit) = (Some(100), Some(150));
    policy.prepare(&now);
    assert_eq!(policy.size(64), 1);
    let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
    exhausted.bytes = now;
    policy.failed(&Failed::new(1, &exhausted));
    assert_eq!(
        policy.size(64),
        1,
        "no smaller one, so the failure is final"
    );
}

/// After each failure it asks for more additional room before it tries again.
#[test]
fn room_that_varies_seldom_costs_a_failure() {
    let rooms = (0..1000)
        .map(|step| (step, 270 + (step * 37) % 61))
        .collect();
    let curve = Curve {
        noise: 0.1,
        rooms,
        ..Curve::affine(1024, 300)
    };
    let steps = run(
        &mut Predictive::default(),
        &mut Device::new(&curve, 3),
        1000,
    );
    assert!(failures(&steps) <= 12, "{}", failures(&steps));
}
