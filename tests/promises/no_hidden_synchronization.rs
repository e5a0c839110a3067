//! Promise 9, no hidden synchronization. Compiled into the test program `cuda`: the simulated driver counts what waits.

use std::thread;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use candle_headroom::batch::{Fixed, Halving};
use candle_headroom::data::{Items, Loader};
use candle_headroom::error::BoxedError;
use candle_headroom::optim::Commit;
use candle_headroom::{ByteSize, DeviceMemory, MicroBatch, Predictive};

use crate::gpu::simulated;
use crate::jobs::{Job, SAMPLES};
use crate::simulator::Simulator;

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

/// Batches that a loader reads and copies ahead, of every model, by the default policy.
#[test]
fn batches_of_a_loader_never_wait_for_the_device() {
    const STEPS: usize = 12;
    const FIRST: usize = 4;
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(ByteSize::mib(512))
        .open()
        .unwrap();
    for job in Job::all(memory.device()) {
        let data = [&job.x, &job.y].map(|data| data.to_device(&Device::Cpu).unwrap());
        let collate = move |rows: Vec<usize>| -> Result<(Tensor, Tensor), BoxedError> {
            let pick = |data: &Tensor| {
                let rows: Result<Vec<_>, _> = rows.iter().map(|row| data.get(*row)).collect();
                Tensor::stack(&rows?, 0)
            };
            Ok((pick(&data[0])?, pick(&data[1])?))
        };
        let rows: Vec<_> = (0..STEPS * SAMPLES).map(|row| row % SAMPLES).collect();
        let builder = Loader::builder(Items(rows), collate).batch(SAMPLES);
        let builder = builder.ahead(STEPS).device(memory.device());
        let mut loader = builder.build().unwrap();
        let mut trainer = job.trainer(Some(&memory), Predictive::default());
        let mut step = |loader: &mut Loader<(Tensor, Tensor)>| {
            let batch = loader.next().unwrap().unwrap();
            let loss = |(x, y): (Tensor, Tensor), _: &MicroBatch| job.loss_of(&x, &y);
            trainer.step(&batch, loss).unwrap();
        };
        for _ in 0..FIRST {
            step(&mut loader);
        }
        // Once all are read, no worker waits for page-locked memory from which an earlier batch may still be copied.
        let begin = Instant::now();
        while loader.stats().ready < STEPS - FIRST {
            let stats = loader.stats();
            assert!(begin.elapsed() < Duration::from_secs(60), "{stats:?}");
            thread::sleep(Duration::from_millis(1));
        }
        simulator.reset_counters();
        for _ in FIRST..STEPS {
            step(&mut loader);
        }
        let counters = simulator.counters();
        assert_eq!(counters.synchronizations, 0, "{}", job.name);
        assert!(counters.launches > 100);
    }
}

/// Whatever an update does besides, and whoever does it.
#[test]
fn no_optimizer_waits_for_the_device() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    for job in Job::all(memory.device()) {
        never_waits(simulator, &memory, &job, job.adjusting());
        never_waits(simulator, &memory, &job, job.plain());
        never_waits(simulator, &memory, &job, job.foreign());
    }
}

fn never_waits(simulator: Simulator, memory: &DeviceMemory, job: &Job, optimizer: impl Commit) {
    job.restart();
    let policy = Halving::builder().start(2).at_most(2).build().unwrap();
    let mut trainer = job.trainer_with(optimizer, Some(memory), policy);
    for _ in 0..2 {
        job.step(&mut trainer).unwrap();
    }
    simulator.reset_counters();
    for _ in 0..2 {
        assert_eq!(job.step(&mut trainer).unwrap().sizes.len(), 4);
    }
    assert_eq!(simulator.counters().synchronizations, 0, "{}", job.name);
}
