//! Cost of a trainer's step over a hand-written candle loop of the same micro-batches, and over a naive loop.
//!
//! `cargo bench --bench overhead [-- --quick]`

mod support;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::batch::Fixed;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, GradientAccumulator, TrackingAllocator};
use candle_nn::{Optimizer, SGD};
use support::transformer::Config;
use support::{Contender, Job, Rounds, alternate, figure, is_quick, measures_with_steady_heap};

/// Installed as the documents advise, with peaks and checks in every micro-batch.
#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const MICRO_BATCHES: usize = 4;

/// A step with what candle offers, `GradStore::extend`.
fn naive(job: &Job, optimizer: &mut SGD, size: usize) -> Result<()> {
    let mut store = GradStore::default();
    for i in 0..MICRO_BATCHES {
        let loss = (job.loss(i * size, size)? / MICRO_BATCHES as f64)?;
        store.extend(loss.backward()?)?;
    }
    optimizer.step(&store)
}

/// Times the steps of one model by the trainer, by hand and naively.
fn steps(
    title: &str,
    config: Config,
    size: usize,
    rounds: usize,
) -> candle_headroom::Result<Rounds> {
    let job = Job::new(config, MICRO_BATCHES * size)?;
    let sgd = || SGD::new(job.vars.clone(), 1e-4);
    let memory = DeviceMemory::host().open()?;
    let mut trainer = AdaptiveTrainer::builder(job.sgd()?)
        .memory(&memory)
        .policy(Fixed::new(size)?)
        .build()?;
    let batch = (&job.x, &job.y);
    let (mut hand, mut plain) = (sgd()?, sgd()?);
    let contenders = vec![
        Contender::new("trainer", || {
            trainer
                .step(&batch, |(x, y), _| job.model.loss(&x, &y))
                .expect("a step");
        }),
        Contender::new("by hand", || {
            job.step_by_hand(&mut hand, MICRO_BATCHES, size)
                .expect("an update")
        }),
        Contender::new("naive", || {
            naive(&job, &mut plain, size).expect("an update")
        }),
    ];
    let rounds = alternate(contenders, rounds);
    let parameters: usize = job.vars.iter().map(|var| var.elem_count()).sum();
    rounds.print(&format!("{title}, {parameters} parameters"), 1);
    Ok(rounds)
}

/// Times only the adding of gradients: a model's real Vars under the smallest possible graph, one product and one sum for each.
fn sums(title: &str, config: Config, rounds: usize) -> candle_headroom::Result<Rounds> {
    let job = Job::new(config, 1)?;
    let factors = job
        .vars
        .iter()
        .map(|var| var.ones_like())
        .collect::<Result<Vec<_>>>()?;
    let loss = || -> Result<Tensor> {
        let mut sum = Tensor::zeros((), DType::F32, &Device::Cpu)?;
        for (var, factor) in job.vars.iter().zip(&factors) {
            sum = (sum + var.mul(factor)?.sum_all()?)?;
        }
        Ok(sum)
    };
    let mut accumulator = GradientAccumulator::builder(job.sgd()?).build()?;
    let contenders = vec![
        Contender::new("accumulator", || {
            for _ in 0..MICRO_BATCHES {
                accumulator
                    .add(loss().expect("a loss"), 1)
                    .expect("gradients");
            }
            accumulator.reset();
        }),
        Contender::new("naive", || {
            let mut store = GradStore::default();
            for _ in 0..MICRO_BATCHES {
                let gradients = loss().and_then(|loss| (loss / MICRO_BATCHES as f64)?.backward());
                store.extend(gradients.expect("gradients")).expect("sums");
            }
        }),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print(title, 1);
    Ok(rounds)
}

fn main() -> candle_headroom::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let rounds = if is_quick() { 101 } else { 801 };
    let config = |context, width, layers| Config {
        context,
        width,
        heads: 4,
        layers,
    };
    let tiny = steps(
        "4 micro-batches of 4 × 16 bytes",
        config(16, 16, 1),
        4,
        rounds,
    )?;
    let small = steps(
        "4 micro-batches of 4 × 32 bytes",
        config(32, 48, 1),
        4,
        rounds,
    )?;
    // Few bytes through many parameters: here adding up gradients costs most.
    let wide = steps(
        "4 micro-batches of 2 × 8 bytes",
        config(8, 256, 1),
        2,
        rounds,
    )?;
    let little = sums(
        "sums of 4 gradients, 16 wide",
        config(16, 16, 1),
        3 * rounds,
    )?;
    let much = sums(
        "sums of 4 gradients, 256 wide, 2 layers",
        config(8, 256, 2),
        rounds,
    )?;

    let mut worsts = [0f64; 3];
    for (name, rounds) in [("tiny", &tiny), ("small", &small), ("wide", &wide)] {
        for (worst, other, title) in [
            (0, "by hand", "step_vs_handwritten"),
            (1, "naive", "step_vs_naive"),
        ] {
            let ratio = rounds.ratio("trainer", other);
            figure(&format!("overhead/{title}_{name}"), ratio, "x");
            worsts[worst] = ratio.max(worsts[worst]);
        }
    }
    for (name, rounds) in [("tiny", &little), ("wide", &much)] {
        let ratio = rounds.ratio("accumulator", "naive");
        figure(&format!("overhead/accumulate_vs_naive_{name}"), ratio, "x");
        worsts[2] = ratio.max(worsts[2]);
    }
    figure("overhead/step_vs_handwritten", worsts[0], "x");
    figure("overhead/step_vs_naive", worsts[1], "x");
    figure("overhead/accumulate_vs_naive", worsts[2], "x");
    Ok(())
}
