//! Marked regions: recomputed only where one sample does not fit otherwise.

use candle_headroom::Predictive;
use candle_headroom::batch::{
    BatchPolicy, Completed, Extent, Failed, Plan, Recompute, RecomputeReason, Regions,
};
use candle_headroom::error::{Cause, MemoryReading, Resource, ResourceExhausted};

const BASE: u64 = 1000;
/// Bytes of a sample with regions kept, and recomputed.
const BYTES: [u64; 2] = [400, 100];

#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) batch: usize,
    pub(super) limit: u64,
}

impl Machine {
    /// Runs a batch, and returns the failures.
    pub(super) fn run(&self, policy: &mut Predictive) -> usize {
        policy.begin(&Extent::new(self.batch, self.batch));
        let (mut done, mut failures) = (0, 0);
        while done < self.batch {
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(0), Some(self.limit));
            policy.prepare(&now);
            let (size, recomputes) = (policy.size(self.batch - done), policy.recomputes());
            let index = usize::from(recomputes);
            let regions = [Regions::Kept, Regions::Recomputed][index];
            let peak = BASE + BYTES[index] * size as u64;
            if peak > self.limit {
                failures += 1;
                let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
                exhausted.bytes = now;
                policy.failed(&Failed::new(size, &exhausted).regions(regions));
                assert!(policy.size(self.batch - done) < size || policy.recomputes() != recomputes);
                continue;
            }
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(0), Some(self.limit));
            (completed.peak, completed.regions) = (Some(peak), regions);
            policy.succeeded(&completed);
            done += size;
        }
        failures
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

/// One sample takes 1,400 bytes with regions kept, and 1,100 recomputed.
#[test]
fn only_where_one_sample_does_not_fit_it_recomputes() {
    for batch in [64, 16, 5] {
        for limit in (1200..30_000).step_by(50) {
            let machine = Machine { batch, limit };
            let mut policy = auto();
            let failures: usize = (0..20).map(|_| machine.run(&mut policy)).sum();
            assert!(failures <= 3, "{failures} failures at {limit}");
            let expected = match limit < BASE + BYTES[0] {
                true => (true, RecomputeReason::OneSample),
                false => (false, RecomputeReason::NoNeed),
            };
            assert_eq!(reason(&policy), expected, "{limit}: {}", plan(&policy));
        }
    }
}

#[test]
fn the_choice_is_explained() {
    let mut machine = Machine {
        batch: 64,
        limit: 1200,
    };
    let mut policy = auto();
    assert_eq!(plan(&policy).regions, None, "no regions yet");
    for _ in 0..20 {
        machine.run(&mut policy);
    }
    assert_eq!(reason(&policy), (true, RecomputeReason::OneSample));
    let text = plan(&policy).to_string();
    assert!(text.contains("one sample does not fit otherwise"), "{text}");

    // More memory: half of a batch fits.
    machine.limit = 14_000;
    for _ in 0..20 {
        machine.run(&mut policy);
    }
    let kept = (false, RecomputeReason::NoNeed);
    assert_eq!(reason(&policy), kept, "{}", plan(&policy));
}

#[test]
fn a_resumed_run_knows_the_choice() {
    let machine = Machine {
        batch: 64,
        limit: 1200,
    };
    let mut policy = auto();
    for _ in 0..20 {
        machine.run(&mut policy);
    }
    let mut resumed = auto();
    let state = policy.state().expect("a state");
    resumed.load_state(&state).expect("a state of its own");
    assert!(resumed.recomputes());
    assert_eq!(machine.run(&mut resumed), 0);
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
