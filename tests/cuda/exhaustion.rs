//! Promise 1 on CUDA: memory runs out at every allocation of a step, and nothing leaks or differs.

use std::collections::HashMap;
use std::error::Error as _;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{CutFinding, Event, find_batch_size};
use candle_headroom::error::{Cause, Phase, Resource};
use candle_headroom::memory::{Enforcement, Growth, library_reserve};
use candle_headroom::optim::Commit;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Error};

use crate::gpu::{MIB, fresh, gpu, simulated};
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

/// What a library says that cannot have memory, as [`Simulator::fail_library`] numbers it. Only the first means nothing else.
const LACKS: [&str; 4] = [
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_EXECUTION_FAILED",
];

/// cuBLAS cannot have its workspace, and says it in each of its ways: an exhaustion of another kind, retried in the same way.
#[test]
fn at_every_call_of_cublas() {
    let capacity = 1024 * MIB;
    let Some((gpu, simulator)) = fresh(2, capacity) else {
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
    let (mut tested, mut survived) = (0, 0);
    for (lack, name) in (0..).zip(LACKS) {
        // With memory to spare only the first is an exhaustion: the others may mean anything, and are not retried.
        simulator.neighbour(0);
        simulator.fail_library(calls / 2, 1, lack);
        let step = job.step(&mut trainer);
        match lack {
            0 => assert_eq!(step.unwrap().retries, 1),
            _ => {
                let error = step.unwrap_err();
                assert!(error.to_string().contains(name), "{error}");
                assert!(error.resource_exhausted().is_none(), "{error}");
            }
        }
        let report = job.step(&mut trainer).unwrap();
        assert_eq!((report.retries, report.samples), (0, SAMPLES), "{name}");

        // Whatever the pool returns, less than the reserve is free.
        let stats = memory.stats();
        let others = stats.free.unwrap() + stats.reserved.unwrap() - library_reserve(capacity);
        simulator.neighbour(others + MIB);
        for nth in 1..=calls {
            simulator.fail_library(nth, 1, lack);
            let report = job.step(&mut trainer).unwrap();
            assert_eq!(report.samples, SAMPLES, "{name}, {nth}");
            tested += 1;
            survived += u64::from(report.retries == 1);
            let Some(Event::Retried { phase, .. }) = report.events.first() else {
                panic!("{name}, {nth}: {report:?}");
            };
            let forward_or_backward = [Some(Phase::Forward), Some(Phase::Backward)];
            assert!(forward_or_backward.contains(phase), "{phase:?}");
        }
    }
    println!("figure: cuda/library_failures_tested = {tested} failures");
    println!("figure: cuda/library_failures_survived = {survived} failures");
    assert_eq!(tested, survived);
    simulator.disarm();
    simulator.neighbour(0);
}

/// Other processes have taken the memory that cuBLAS needs for its first product, and a pool that is full of a program's own makes no room.
#[test]
fn a_first_product_without_memory() {
    for (lack, name) in (0..).zip(LACKS) {
        let Some((gpu, simulator)) = fresh(2, 1024 * MIB) else {
            return;
        };
        let builder = DeviceMemory::cuda(gpu.ordinal).growth(Growth::Preallocate);
        let memory = builder.limit(256 * MIB).open().unwrap();
        let job = Job::transformer(memory.device());
        let mut trainer = job.trainer(Some(&memory), Halves(SAMPLES));
        simulator.fail_library(0, 0, lack);
        simulator.neighbour(memory.stats().free.unwrap());
        let error = job.step(&mut trainer).unwrap_err();
        let Error::ResourceExhausted(exhausted) = error else {
            panic!("{name}: {error}");
        };
        assert_eq!(exhausted.resource, Resource::LibraryWorkspace, "{name}");
        assert_eq!(exhausted.micro_batch, Some(1), "{name}");
        let source = exhausted.source().expect("what cuBLAS said").to_string();
        assert!(source.contains(name), "{source}");
        simulator.neighbour(0);
        assert_eq!(job.step(&mut trainer).unwrap().samples, SAMPLES, "{name}");
        simulator.disarm();
    }
}

/// cuBLAS and cuRAND begin when the memory is opened.
#[test]
fn libraries_that_cannot_begin() {
    for lack in 0..4 {
        for nth in 1..=2 {
            let Some((gpu, simulator)) = fresh(2, 1024 * MIB) else {
                return;
            };
            let open = || DeviceMemory::cuda(gpu.ordinal).open();
            simulator.fail_library(nth, 1, lack);
            let error = open().unwrap_err();
            let is_exhausted = error.resource_exhausted().is_some();
            assert_eq!(is_exhausted, lack == 0, "{error}");

            simulator.neighbour(1000 * MIB);
            simulator.fail_library(nth, 1, lack);
            let error = open().unwrap_err();
            let exhausted = error.resource_exhausted().unwrap();
            assert_eq!(exhausted.resource, Resource::LibraryWorkspace, "{error}");
            drop(open().unwrap());
            simulator.neighbour(0);
        }
    }
}

/// A search without a trainer takes a library's failure for what it is too.
#[test]
fn a_search_on_a_full_device() {
    let Some((gpu, simulator)) = fresh(2, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let device = memory.device();
    let product = |size| {
        let x = Tensor::ones((size, 4), DType::F32, device)?;
        x.t()?.matmul(&x)
    };
    product(1).unwrap();
    simulator.neighbour(memory.stats().free.unwrap() - 8 * MIB);
    // The fourth of the sizes 1, 2, 4, 8.
    simulator.fail_library(4, 1, 3);
    let found = find_batch_size(device, None, 16, product).unwrap();
    simulator.neighbour(0);
    assert_eq!(found, 7);
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

/// A thousand exhaustions under a hard limit on a GPU, fewer on the simulated driver, which fills tensors on the host: each sample counts
/// once, and nothing leaks.
#[test]
fn a_thousand_times_under_a_limit() {
    let gpu = gpu();
    let wanted = match Simulator::of(0) {
        Some(_) => 50,
        None => 1000,
    };
    let limit = 96 * MIB;
    let memory = DeviceMemory::cuda(gpu.ordinal).limit(limit).open().unwrap();
    if memory.stats().enforcement != Some(Enforcement::Hard) {
        eprintln!("skipped: this driver's limit is soft");
        return;
    }
    const RATE: f64 = 1. / 4096.;
    let var = Var::ones(4, DType::F32, memory.device()).unwrap();
    let x = Tensor::ones((32, 4), DType::F32, memory.device()).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&var), RATE))
        .memory(&memory)
        .policy(Returns::to(32))
        .build()
        .unwrap();
    let (mut exhausted, mut steps, mut in_use) = (0, 0, None);
    while exhausted < wanted {
        let report = trainer.step(&x, |x, _| {
            let _ballast = Tensor::zeros(x.dims()[0] << 23, DType::U8, x.device())?;
            x.broadcast_mul(&var)?.sum(1)?.mean_all()
        });
        let report = report.unwrap();
        assert_eq!(report.sizes.iter().sum::<usize>(), 32, "{report:?}");
        assert!(report.retries > 0, "{report:?}");
        exhausted += report.retries;
        steps += 1;
        memory.device().synchronize().unwrap();
        let now = memory.in_use();
        assert_eq!(*in_use.get_or_insert(now), now, "after {steps} steps");
    }
    // Exact, because the gradient of each weight is 1.
    let expected = 1. - steps as f32 * RATE as f32;
    assert_eq!(var.to_vec1::<f32>().unwrap(), [expected; 4]);
    assert!(memory.stats().peak_reserved.unwrap() <= limit);
    println!("figure: cuda/exhaustions_under_a_limit = {exhausted} exhaustions");
}
