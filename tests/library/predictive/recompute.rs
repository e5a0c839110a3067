//! Marked regions: kept where that is fastest, recomputed where larger micro-batches pay or one sample does not fit otherwise.

use std::time::Duration;

use candle_headroom::Predictive;
use candle_headroom::batch::{
    BatchPolicy, Completed, Extent, Failed, Plan, Recompute, RecomputeReason, Regions,
};
use candle_headroom::error::{Cause, MemoryReading, Resource, ResourceExhausted};

const BASE: u64 = 1000;
/// Bytes of a sample with regions kept, and recomputed.
const BYTES: [u64; 2] = [400, 100];

/// A device on which a micro-batch takes as long as some samples more.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) batch: usize,
    pub(super) limit: u64,
    /// In samples.
    pub(super) launch: f64,
    /// How many times as long everything takes, because of other work.
    pub(super) load: f64,
}

impl Machine {
    fn bytes(&self, size: usize, recomputes: bool) -> u64 {
        BASE + BYTES[usize::from(recomputes)] * size as u64
    }

    fn seconds(&self, size: usize, recomputes: bool) -> f64 {
        let work = if recomputes { 4. / 3. } else { 1. };
        (self.launch + size as f64) * work * self.load * 1e-3
    }

    /// Samples a second of the best size that fits with 1 % of the room left free, kept or recomputed.
    fn best(&self) -> f64 {
        let speed = |recomputes: bool| {
            let sizes = (1..=self.batch)
                .filter(|size| self.bytes(*size, recomputes) <= self.limit * 99 / 100);
            let parts = sizes.map(|size| self.batch.div_ceil(size));
            let seconds = parts.map(|parts| {
                let sizes =
                    (0..parts).map(|i| self.batch * (i + 1) / parts - self.batch * i / parts);
                sizes
                    .map(|size| self.seconds(size, recomputes))
                    .sum::<f64>()
            });
            self.batch as f64 / seconds.fold(f64::INFINITY, f64::min)
        };
        speed(false).max(speed(true))
    }

    /// Runs a batch, and returns its seconds and the failures.
    pub(super) fn run(&self, policy: &mut Predictive) -> (f64, usize) {
        policy.begin(&Extent::new(self.batch, self.batch));
        let (mut done, mut seconds, mut failures) = (0, 0., 0);
        while done < self.batch {
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(0), Some(self.limit));
            policy.prepare(&now);
            let (size, recomputes) = (policy.size(self.batch - done), policy.recomputes());
            let regions = [Regions::Kept, Regions::Recomputed][usize::from(recomputes)];
            let peak = self.bytes(size, recomputes);
            seconds += self.seconds(size, recomputes);
            if peak > self.limit {
                failures += 1;
                let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
                exhausted.bytes = now;
                policy.failed(&Failed::new(size, &exhausted).regions(regions));
                assert!(policy.size(self.batch - done) < size || policy.recomputes() != recomputes);
                continue;
            }
            let elapsed = Duration::from_secs_f64(self.seconds(size, recomputes));
            policy.timed(&Extent::new(size, size), regions, elapsed);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(0), Some(self.limit));
            (completed.peak, completed.regions) = (Some(peak), regions);
            policy.succeeded(&completed);
            done += size;
        }
        (seconds, failures)
    }
}

pub(super) fn auto() -> Predictive {
    let mut policy = Predictive::default();
    policy.set_recompute(Recompute::Auto);
    policy
}

pub(super) fn plan(policy: &Predictive) -> Plan {
    policy.plan().expect("a plan")
}

pub(super) fn reason(policy: &Predictive) -> (bool, RecomputeReason) {
    let regions = plan(policy).regions.expect("a model with regions");
    (regions.is_on, regions.reason)
}

#[test]
fn the_faster_way_is_found_at_every_limit() {
    let mut chosen = [0, 0];
    for (batch, launch) in [(64, 0.5), (64, 4.), (64, 30.), (16, 1.), (16, 8.), (5, 8.)] {
        for limit in (1200..30_000).step_by(800) {
            let machine = Machine {
                batch,
                limit,
                launch,
                load: 1.,
            };
            let mut policy = auto();
            let first: Vec<_> = (0..150).map(|_| machine.run(&mut policy)).collect();
            let failures: usize = first.iter().map(|(_, failures)| failures).sum();
            assert!(failures <= 2, "{failures} failures at {limit}");
            let settled: f64 = (0..50).map(|_| machine.run(&mut policy).0).sum();
            let share = 50. * batch as f64 / settled / machine.best();
            assert!(
                share >= 0.95,
                "{share:.3} of {batch} at {limit}, {launch}: {}",
                plan(&policy)
            );
            chosen[usize::from(policy.recomputes())] += 1;
            // What is tried costs little.
            let all: f64 = first.iter().map(|(seconds, _)| seconds).sum();
            let share = 150. * batch as f64 / all / machine.best();
            assert!(
                share >= 0.8,
                "{share:.3} of {batch} at {limit}, {launch}: {}",
                plan(&policy)
            );
        }
    }
    assert!(chosen[0] > 60 && chosen[1] > 15, "{chosen:?}");
}

/// For five batches at a time, everything takes twice as long. That is more than the ways differ by.
#[test]
fn other_work_on_the_device_does_not_decide() {
    for (launch, is_faster) in [(8., true), (0.2, false)] {
        for phase in 0..10 {
            let mut machine = Machine {
                batch: 16,
                limit: 1790,
                launch,
                load: 1.,
            };
            let mut policy = auto();
            for step in 0..100 {
                machine.load = if (step + phase) % 10 < 5 { 2. } else { 1. };
                machine.run(&mut policy);
            }
            let chosen = (is_faster, RecomputeReason::Faster);
            assert_eq!(reason(&policy), chosen, "{phase}: {}", plan(&policy));
        }
    }
}

/// A batch of more micro-batches than there are between two decisions otherwise.
#[test]
fn a_batch_in_many_parts_is_compared_too() {
    let machine = Machine {
        batch: 4096,
        limit: 1790,
        launch: 8.,
        load: 1.,
    };
    let mut policy = auto();
    for _ in 0..6 {
        machine.run(&mut policy);
    }
    let chosen = (true, RecomputeReason::Faster);
    assert_eq!(reason(&policy), chosen, "{}", plan(&policy));
}

#[test]
fn the_choice_is_explained() {
    let mut machine = Machine {
        batch: 64,
        limit: 1200,
        launch: 1.,
        load: 1.,
    };
    let mut policy = auto();
    assert_eq!(plan(&policy).regions, None, "no regions yet");
    for _ in 0..20 {
        machine.run(&mut policy);
    }
    assert_eq!(reason(&policy), (true, RecomputeReason::OneSample));
    assert!(
        plan(&policy)
            .to_string()
            .contains("one sample does not fit otherwise")
    );

    // More room: half of a batch fits.
    machine = Machine {
        batch: 64,
        limit: 14_000,
        launch: 40.,
        load: 1.,
    };
    for _ in 0..100 {
        machine.run(&mut policy);
    }
    assert_eq!(
        reason(&policy),
        (true, RecomputeReason::Faster),
        "{}",
        plan(&policy)
    );
    let speed = plan(&policy)
        .regions
        .and_then(|regions| regions.speed)
        .expect("compared");
    assert!((1.02..1.5).contains(&speed), "{speed}");

    // All of it fits.
    machine.limit = 30_000;
    for _ in 0..20 {
        machine.run(&mut policy);
    }
    assert_eq!(
        reason(&policy),
        (false, RecomputeReason::NoNeed),
        "{}",
        plan(&policy)
    );

    // A device on which the launch is nothing.
    let machine = Machine {
        batch: 64,
        limit: 3000,
        launch: 1.,
        load: 1.,
    };
    for _ in 0..200 {
        machine.run(&mut policy);
    }
    assert!(!policy.recomputes(), "{}", plan(&policy));
}

#[test]
fn what_was_asked_is_done() {
    for (asked, is_on) in [(Recompute::Never, false), (Recompute::Always, true)] {
        let mut policy = Predictive::default();
        policy.set_recompute(asked);
        let mut completed = Completed::new(1);
        completed.regions = Regions::Kept;
        policy.succeeded(&completed);
        assert_eq!(reason(&policy), (is_on, RecomputeReason::Asked));
    }
}

/// A cause that may pass by itself, or that counts as one though it stays: kept samples are tried again, but less and less often.
#[test]
fn after_a_passing_failure_of_one_sample_kept_ones_are_tried_again() {
    let mut policy = auto();
    let mut tried = Vec::new();
    for step in 0..2000 {
        policy.begin(&Extent::new(4, 4));
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(0), Some(1000));
        policy.prepare(&now);
        if !policy.recomputes() {
            tried.push(step);
            let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
            exhausted.bytes = now;
            let failed = Failed::new(1, &exhausted).regions(Regions::Kept);
            policy.failed(&failed.passing(true));
            assert!(policy.recomputes());
        }
        let mut completed = Completed::new(1);
        (completed.before, completed.limit) = (Some(0), Some(1000));
        (completed.peak, completed.regions) = (Some(900), Regions::Recomputed);
        policy.succeeded(&completed);
    }
    assert_eq!(tried.len(), 6, "{tried:?}");
    assert!(
        tried.windows(3).all(|t| t[2] - t[1] > t[1] - t[0]),
        "{tried:?}"
    );
}
