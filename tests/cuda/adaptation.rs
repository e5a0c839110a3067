//! The default policy on a driver: limits that drift, and a neighbour that comes and goes.

use candle_core::{DType, Tensor, Var};
use candle_headroom::batch::{Event, Reason};
use candle_headroom::error::Cause;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Foreign, StepReport};
use candle_nn::SGD;

use crate::gpu::{MIB, fresh};
use crate::support::sgd;

/// What each sample holds while it is worked on.
const SAMPLE: u64 = MIB;

/// A trainer of one Var, by the default policy.
struct Job {
    memory: DeviceMemory,
    x: Tensor,
    trainer: AdaptiveTrainer<Foreign<SGD>>,
    var: Var,
}

impl Job {
    fn new(memory: DeviceMemory, samples: usize) -> Self {
        let device = memory.device();
        let var = Var::ones(4, DType::F32, device).unwrap();
        let trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&var), 1e-3));
        Self {
            x: Tensor::ones((samples, 4), DType::F32, device).unwrap(),
            trainer: trainer.memory(&memory).build().unwrap(),
            var,
            memory,
        }
    }

    fn step(&mut self) -> StepReport {
        let Self {
            x, var, trainer, ..
        } = self;
        let stepped = trainer.step(&*x, |x, _| {
            let bytes = x.dims()[0] * SAMPLE as usize;
            let _held = Tensor::zeros(bytes, DType::U8, x.device())?;
            x.broadcast_mul(var)?.sum(1)?.mean_all()
        });
        stepped.unwrap()
    }
}

/// 300, 120, 600 MiB: nothing fails but once, and what comes back is used within ten steps.
#[test]
fn a_drifting_limit_is_followed() {
    let Some((gpu, _)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(300 * MIB)
        .open()
        .unwrap();
    let mut job = Job::new(memory, 1024);
    let mut retries = 0;
    for (limit, largest) in [(300, 256), (120, 114), (600, 512)] {
        job.memory.set_limit(limit * MIB).unwrap();
        job.memory.reset_peak();
        let mut sizes = Vec::new();
        for _ in 0..10 {
            let report = job.step();
            assert_eq!(report.samples, 1024);
            retries += report.retries;
            sizes.push(report.micro_batch());
            assert!(job.memory.stats().peak_reserved.unwrap() <= limit * MIB);
        }
        println!("{limit} MiB: {sizes:?}; {}", job.trainer.plan().unwrap());
        assert_eq!(sizes[9], largest, "{limit} MiB: {sizes:?}");
    }
    println!("figure: cuda/adaptation_retries = {retries} retries");
    assert!(retries <= 1, "{retries}");
    let plan = job.trainer.plan().unwrap();
    assert_eq!(plan.reason, Reason::Room, "{plan}");
}

/// Without a limit the device is the bound: what a neighbour takes is seen before it is hit, and when it is gone it is used at once.
#[test]
fn a_neighbour_is_met_before_it_is_hit() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let mut job = Job::new(memory, 512);
    for _ in 0..2 {
        assert_eq!(job.step().retries, 0);
    }
    assert_eq!(job.step().sizes, [512]);

    job.memory.trim().unwrap();
    simulator.neighbour(768 * MIB);
    let crowded = job.step();
    assert_eq!((crowded.retries, crowded.samples), (0, 512), "{crowded:?}");
    assert!(crowded.micro_batch() < 256, "{crowded:?}");

    simulator.neighbour(0);
    assert_eq!(
        job.step().sizes,
        [512],
        "gone, and nothing is held against it"
    );
}

/// It comes in the middle of a step, where nobody looks: one failure, with its cause, and none held against the size.
#[test]
fn a_neighbour_in_the_middle_of_a_step() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let mut job = Job::new(memory, 1200);
    for _ in 0..3 {
        job.step();
    }
    assert_eq!(job.step().sizes, [600, 600]);
    job.memory.trim().unwrap();
    let Job {
        x,
        var,
        trainer,
        memory,
    } = &mut job;
    let mut has_come = false;
    let report = trainer.step(&*x, |x, _| {
        let held = Tensor::zeros(x.dims()[0] * SAMPLE as usize, DType::U8, x.device())?;
        let loss = x.broadcast_mul(var)?.sum(1)?.mean_all();
        drop(held);
        if !std::mem::replace(&mut has_come, true) {
            x.device().synchronize()?;
            memory.trim()?;
            simulator.neighbour(700 * MIB);
        }
        loss
    });
    let report = report.unwrap();
    assert_eq!(report.samples, 1200);
    let causes: Vec<_> = (report.events.iter())
        .filter_map(|event| match event {
            Event::Retried { cause, .. } => Some(*cause),
            _ => None,
        })
        .collect();
    assert!(causes.contains(&Cause::Neighbour), "{report:?}");
    assert!(
        causes.len() <= 2,
        "once as it was, then what fits: {report:?}"
    );
    simulator.neighbour(0);
    job.step();
    assert_eq!(job.step().sizes, [600, 600]);
}
