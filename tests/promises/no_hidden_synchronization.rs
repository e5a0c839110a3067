//! Promise 9, no hidden synchronization. Compiled into the test program `cuda`: the simulated driver counts what waits.

use candle_headroom::batch::Fixed;
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
    let mut trainer = job.trainer(Some(&memory), Predictive::default());
    job.step(&mut trainer).unwrap();
    simulator.reset_counters();
    for _ in 0..60 {
        job.step(&mut trainer).unwrap();
    }
    assert_eq!(simulator.counters().synchronizations, 0);
}

/// Reports show losses that have arrived.
#[test]
fn a_printed_report_never_waits_for_the_device() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let job = Job::transformer(memory.device());
    let mut trainer = job.trainer(Some(&memory), Fixed::new(2).unwrap());
    job.step(&mut trainer).unwrap();
    simulator.reset_counters();
    let reports = [(); 4].map(|()| {
        let report = job.step(&mut trainer).unwrap();
        (report.to_string(), report)
    });
    assert_eq!(simulator.counters().synchronizations, 0);
    // The simulated device is as fast as the host. The first report that is printed asks for those after it.
    for (index, (line, report)) in reports.iter().enumerate() {
        let loss = match index {
            0 => "n/a".to_owned(),
            _ => format!("{:.4}", report.loss().unwrap()),
        };
        let begin = format!("step {}: loss {loss}, ", report.step);
        assert!(line.starts_with(&begin), "{line}");
    }
}
