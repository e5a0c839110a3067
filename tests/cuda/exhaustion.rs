//! Promise 1 on CUDA: memory runs out at every allocation of a step, and nothing leaks or differs.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{CutFinding, Event};
use candle_headroom::error::Cause;
use candle_headroom::optim::Commit;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Error};

use crate::gpu::{MIB, gpu, simulated};
use crate::jobs::{Job, SAMPLES};
use crate::points::Points;
use crate::simulator::Simulator;
use crate::support::{Halves, Returns, Schedule, sgd};

/// Result of a step with injected failures.
enum Outcome {
    /// The update was applied, with these micro-batch sizes.
    Applied(Vec<usize>),
    /// The optimizer was interrupted half-way and reported it.
    Interrupted,
}

/// Setup of a step before failures are injected.
struct Setting<O> {
    optimizer: fn(&Job) -> O,
    /// Whether an error can interrupt the optimizer half-way.
    is_foreign: bool,
    /// One trainer for all trials: it has its buffers, and a size that has gone well. Its optimizer has no state.
    is_warm: bool,
    /// Number of failing allocations in a row.
    times: u64,
}

struct Trials<'a, O: Commit> {
    job: &'a Job,
    memory: &'a DeviceMemory,
    simulator: Simulator,
    setting: Setting<O>,
    trainer: Option<AdaptiveTrainer<O>>,
}

const HALVES: [usize; 2] = [SAMPLES / 2; 2];

impl<O: Commit> Trials<'_, O> {
    fn trainer(&mut self) -> AdaptiveTrainer<O> {
        let optimizer = self.setting.optimizer;
        self.trainer.take().unwrap_or_else(|| {
            let policy = Returns::to(SAMPLES / 2);
            self.job
                .trainer_with(optimizer(self.job), Some(self.memory), policy)
        })
    }

    /// One step from the initial parameters, in which allocations from the `nth` on fail; none for 0.
    fn step(&mut self, nth: u64) -> Outcome {
        let mut trainer = self.trainer();
        self.job.restart();
        self.simulator.reset_counters();
        self.simulator
            .fail_allocation(nth, self.setting.times.min(nth));
        let stepped = self.job.step(&mut trainer);
        self.simulator.disarm();
        let outcome = match stepped {
            Ok(report) => {
                // The check of the first cut is given up instead.
                let check = report.cut_check().map(|check| &check.finding);
                let gave_up = matches!(check, Some(CutFinding::Undecided(_)));
                let failed = report.retries > 0 || gave_up;
                assert_eq!(failed, nth > 0, "{} at {nth}", self.job.name);
                Outcome::Applied(report.sizes)
            }
            Err(Error::UpdateInterrupted(interrupted)) if self.setting.is_foreign => {
                let reason = interrupted.reason.expect("the reason of the first failure");
                assert!(reason.resource_exhausted().is_some(), "{reason}");
                // Nothing goes on from a mixture of old and new parameters, until both are restored.
                let again = self.job.step(&mut trainer).unwrap_err();
                assert!(matches!(again, Error::UpdateInterrupted(_)), "{again}");
                trainer.replace_optimizer((self.setting.optimizer)(self.job));
                self.job.restart();
                assert_eq!(self.job.step(&mut trainer).unwrap().sizes, HALVES);
                Outcome::Interrupted
            }
            Err(other) => panic!("{} at {nth}: {other:?}", self.job.name),
        };
        self.trainer = Some(trainer).filter(|_| self.setting.is_warm);
        outcome
    }

    /// The parameters after a step in these micro-batches in which nothing fails.
    fn undisturbed(&self, sizes: &[usize]) -> Vec<Vec<f64>> {
        self.job.restart();
        let optimizer = (self.setting.optimizer)(self.job);
        let schedule = Schedule::new(sizes);
        let mut trainer = self
            .job
            .trainer_with(optimizer, Some(self.memory), schedule);
        assert_eq!(self.job.step(&mut trainer).unwrap().sizes, sizes);
        self.job.state()
    }
}

#[derive(Default)]
struct Tally {
    /// Allocations of all steps.
    points: u64,
    /// Those of them that were made to fail.
    tested: u64,
    interrupted: u64,
    differing: usize,
    leaked: u64,
}

impl Tally {
    /// Lets each chosen allocation of a step fail, one in each trial.
    fn run<O: Commit>(
        &mut self,
        (job, memory, simulator): (&Job, &DeviceMemory, Simulator),
        setting: Setting<O>,
    ) {
        let mut trials = Trials {
            job,
            memory,
            simulator,
            setting,
            trainer: None,
        };
        // The outputs of a thread's first regions are compared, which allocates.
        for _ in 0..4 {
            trials.step(0);
        }
        let allocations = trials.simulator.counters().allocations;
        assert!(allocations > 200, "{allocations}");
        let live = trials.simulator.counters().live_bytes;
        let mut references: HashMap<Vec<usize>, Vec<Vec<f64>>> = HashMap::new();
        self.points += allocations;
        for nth in Points::chosen().of(allocations) {
            let sizes = match trials.step(nth) {
                Outcome::Applied(sizes) => sizes,
                Outcome::Interrupted => {
                    self.interrupted += 1;
                    HALVES.to_vec()
                }
            };
            self.tested += 1;
            self.leaked += trials.simulator.counters().live_bytes.abs_diff(live);
            let found = trials.job.state();
            let expected = references
                .entry(sizes)
                .or_insert_with_key(|sizes| trials.undisturbed(sizes));
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            self.differing += pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
    }
}

fn every_allocation(ordinal: usize, job: fn(&Device) -> Job) -> Tally {
    let memory = DeviceMemory::cuda(ordinal).open().unwrap();
    let job = job(memory.device());
    let on = (&job, &memory, Simulator::of(ordinal).unwrap());
    let mut tally = Tally::default();
    // A first step, in which buffers are allocated and no size has gone well yet.
    tally.run(
        on,
        Setting {
            optimizer: Job::foreign,
            is_foreign: true,
            is_warm: false,
            times: 1,
        },
    );
    tally.run(
        on,
        Setting {
            optimizer: Job::adjusting,
            is_foreign: false,
            is_warm: false,
            times: 1,
        },
    );
    // A later one, in which the same size is tried once more, and that may fail as well.
    for times in [1, 2] {
        tally.run(
            on,
            Setting {
                optimizer: Job::plain,
                is_foreign: false,
                is_warm: true,
                times,
            },
        );
    }
    tally
}

#[test]
fn at_every_allocation_of_a_step() {
    let Some(_alone) = simulated(0) else {
        return;
    };
    // Thousands of steps, so each model runs on its own device and thread.
    let tallies = std::thread::scope(|scope| {
        let jobs = [
            (0, Job::transformer as fn(&Device) -> Job),
            (6, Job::convolution),
            (5, Job::layers),
            (4, Job::recomputed),
        ];
        let threads =
            jobs.map(|(ordinal, job)| scope.spawn(move || every_allocation(ordinal, job)));
        threads.map(|thread| thread.join().unwrap())
    });
    let points = tallies.iter().map(|tally| tally.points).sum();
    let tested: u64 = tallies.iter().map(|tally| tally.tested).sum();
    let interrupted: u64 = tallies.iter().map(|tally| tally.interrupted).sum();
    let leaked: u64 = tallies.iter().map(|tally| tally.leaked).sum();
    let differing: usize = tallies.iter().map(|tally| tally.differing).sum();
    println!(
        "{interrupted} of the tested points lie in candle's optimizers, whose updates cannot be undone"
    );
    Points::chosen().figures("cuda/exhaustion", points, tested);
    println!("figure: cuda/leaked_bytes = {leaked} bytes");
    println!("figure: cuda/parameters_differing = {differing} parameters");
    assert_eq!((leaked, differing), (0, 0));
    assert!(interrupted > 0 && interrupted < tested / 2);
}

/// cuBLAS cannot have its workspace: an exhaustion of another kind, retried in the same way.
#[test]
fn at_every_call_of_cublas() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let job = Job::transformer(memory.device());
    let mut trainer = job.trainer(Some(&memory), Halves(SAMPLES / 2));
    job.step(&mut trainer).unwrap();
    simulator.reset_counters();
    job.step(&mut trainer).unwrap();
    let calls = simulator.counters().library_calls;
    assert!(calls > 20, "{calls}");
    for nth in 1..=calls {
        simulator.fail_library(nth, 1);
        let report = job.step(&mut trainer).unwrap();
        assert_eq!((report.retries, report.samples), (1, SAMPLES), "{nth}");
    }
}

/// The real thing, on any driver: a limit that the batch does not fit, met by allocating.
#[test]
fn a_limit_that_the_batch_does_not_fit() {
    let gpu = gpu();
    // 96 MiB leave room for some of the samples: each takes 8 MiB more than the model needs.
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(96 * MIB)
        .open()
        .unwrap();
    let ballast = |x: &Tensor| {
        let bytes = x.dims()[0] << 23;
        Tensor::zeros(bytes, DType::U8, x.device())
    };
    let var = Var::ones(4, DType::F32, memory.device()).unwrap();
    let x = Tensor::ones((32, 4), DType::F32, memory.device()).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&var), 0.5))
        .memory(&memory)
        .policy(Halves(32))
        .build()
        .unwrap();
    let report = trainer
        .step(&x, |x, _| {
            let _ballast = ballast(&x)?;
            x.broadcast_mul(&var)?.sum(1)?.mean_all()
        })
        .unwrap();
    assert!(report.retries >= 1, "{report}");
    let cause = report.events.iter().find_map(|event| match event {
        Event::Retried { cause, .. } => Some(*cause),
        _ => None,
    });
    assert_eq!(cause, Some(Cause::Limit), "{report:?}");
    assert_eq!(report.samples, 32);
    assert!(report.sizes.iter().all(|&size| size <= 8), "{report:?}");
    // The mean's gradient is 1 for each weight, so one update with a rate of 0.5 leaves 0.5: each sample counted once.
    assert_eq!(var.to_vec1::<f32>().unwrap(), [0.5; 4]);
}
