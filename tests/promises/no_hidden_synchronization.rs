//! Promise 9, no hidden synchronization. Compiled into the test program `cuda`: the simulated driver counts what waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_headroom::batch::{
    BatchPolicy, Completed, Extent, Failed, Fixed, Plan, Recompute, Regions,
};
use candle_headroom::error::MemoryReading;
use candle_headroom::{ByteSize, DeviceMemory, Predictive};

use crate::gpu::simulated;
use crate::jobs::Job;

/// A whole step is queued without waiting. Only reading the loss waits.
#[test]
fn a_step_never_waits_for_the_device() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    for job in Job::all(memory.device()) {
        let mut trainer = job.trainer(Some(&memory), Fixed::new(2).unwrap());
        job.step(&mut trainer).unwrap();
        simulator.reset_counters();
        let report = job.step(&mut trainer).unwrap();
        assert_eq!(report.sizes.len(), 4);
        assert_eq!(simulator.counters().synchronizations, 0, "{}", job.name);
        assert!(simulator.counters().launches > 100);
    }
}

/// The default policy, and the number of times that it received.
#[derive(Debug)]
struct Counting {
    policy: Predictive,
    times: Arc<AtomicUsize>,
}

impl BatchPolicy for Counting {
    fn size(&self, remaining: usize) -> usize {
        self.policy.size(remaining)
    }

    fn begin(&mut self, batch: &Extent) {
        self.policy.begin(batch);
    }

    fn prepare(&mut self, now: &MemoryReading) {
        self.policy.prepare(now);
    }

    fn succeeded(&mut self, completed: &Completed) {
        self.policy.succeeded(completed);
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.policy.failed(failed);
    }

    fn recomputes(&self) -> bool {
        self.policy.recomputes()
    }

    fn set_recompute(&mut self, recompute: Recompute) {
        self.policy.set_recompute(recompute);
    }

    fn wants_time(&self) -> bool {
        self.policy.wants_time()
    }

    fn timed(&mut self, micro_batch: &Extent, regions: Regions, elapsed: Duration) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.policy.timed(micro_batch, regions, elapsed);
    }

    fn plan(&self) -> Option<Plan> {
        self.policy.plan()
    }
}

/// On a device that lags behind, the default policy times micro-batches with events that are queried later.
#[test]
fn the_default_policy_never_waits_for_the_device() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(ByteSize::mib(512))
        .open()
        .unwrap();
    let job = Job::transformer(memory.device());
    let times = Arc::new(AtomicUsize::new(0));
    let mut trainer = job.trainer(
        Some(&memory),
        Counting {
            policy: Predictive::default(),
            times: Arc::clone(&times),
        },
    );
    job.step(&mut trainer).unwrap();
    simulator.set_event_lag(2);
    simulator.reset_counters();
    for _ in 0..60 {
        job.step(&mut trainer).unwrap();
    }
    let waits = simulator.counters().synchronizations;
    simulator.disarm();
    assert_eq!(waits, 0);
    let times = times.load(Ordering::Relaxed);
    assert!(times >= 8, "{times} of the micro-batches were timed");
}
