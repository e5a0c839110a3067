//! What memory costs on a GPU: steps against a hand-written loop and against CUDA's own pool, taking memory under each growth, a
//! limit's keeping, and the time from an exhaustion to the next attempt; and what an optimizer's step does.
//!
//! `cargo bench --features cuda --bench cuda [-- --quick]`. On the simulated driver it runs as well, so that it is known to, but its
//! times say nothing about a GPU and are no figures. With `--counts` it counts in place of measuring times: counts/mod.rs.

#[path = "../nn/composed.rs"]
mod composed;
#[macro_use]
#[path = "../../tests/cuda/control.rs"]
mod control;
mod counts;
mod layers;
#[path = "../nn/llama.rs"]
mod llama;
mod on_host;
mod optimizers;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{BatchPolicy, Completed, Failed, Fixed};
use candle_headroom::memory::Growth;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Result};
use candle_nn::{Optimizer, SGD};
use support::transformer::Config;
use support::{Contender, Job, alternate, is_quick, median};

const MIB: u64 = 1 << 20;
const MICRO_BATCHES: usize = 4;

/// The model and the sizes. They are small without a real GPU.
struct Scale {
    config: Config,
    size: usize,
    rounds: usize,
    block: u64,
}

fn is_real() -> bool {
    std::env::var("HEADROOM_CUDA").is_ok_and(|driver| driver == "real")
}

impl Scale {
    fn new() -> Self {
        let (config, size, block) = match is_real() {
            true => ((256, 512, 8, 6), 16, 256 * MIB),
            false => ((8, 16, 2, 1), 2, 16 * MIB),
        };
        let (context, width, heads, layers) = config;
        let rounds = match (is_real(), is_quick()) {
            (true, false) => 101,
            (true, true) => 21,
            (false, _) => 5,
        };
        Self {
            config: Config {
                context,
                width,
                heads,
                layers,
            },
            size,
            rounds,
            block,
        }
    }
}

fn report(name: &str, number: f64, unit: &str) {
    match is_real() {
        true => support::figure(&format!("gpu/{name}"), number, unit),
        false => println!("simulated driver, no figure: {name} = {number:.4} {unit}"),
    }
}

/// Both on the same device, each with its own optimizer, and synchronized after each step.
fn against_a_loop_by_hand(scale: &Scale) -> Result<()> {
    let memory = DeviceMemory::cuda(0).open()?;
    let job = Job::on(memory.device(), scale.config, MICRO_BATCHES * scale.size)?;
    let mut trainer = AdaptiveTrainer::builder(job.sgd()?)
        .memory(&memory)
        .policy(Fixed::new(scale.size)?)
        .build()?;
    let mut hand = SGD::new(job.vars.clone(), 1e-4)?;
    let wait = || memory.device().synchronize().expect("a sound device");
    let contenders = vec![
        Contender::new("trainer", || {
            trainer
                .step(&(&job.x, &job.y), |(x, y), _| job.model.loss(&x, &y))
                .expect("a step");
            wait();
        }),
        Contender::new("by hand", || {
            job.step_by_hand(&mut hand, MICRO_BATCHES, scale.size)
                .expect("an update");
            wait();
        }),
    ];
    let rounds = alternate(contenders, scale.rounds);
    rounds.print("a step of 4 micro-batches", 1);
    report(
        "step_vs_handwritten",
        rounds.ratio("trainer", "by hand"),
        "x",
    );
    Ok(())
}

/// Steps of one model, each waited for: on CUDA's own pool, which gives memory back whenever somebody waits, and on ours.
fn against_the_default_pool(scale: &Scale) -> Result<()> {
    const STEPS: usize = 5;
    let steps = |device: &Device| -> Result<Duration> {
        let job = Job::on(device, scale.config, scale.size)?;
        let mut optimizer = SGD::new(job.vars.clone(), 1e-4)?;
        let mut step = || -> Result<f32> {
            let loss = job.loss(0, scale.size)?;
            optimizer.backward_step(&loss)?;
            device.synchronize()?;
            Ok(loss.to_scalar()?)
        };
        step()?;
        let began = Instant::now();
        for _ in 0..STEPS {
            step()?;
        }
        Ok(began.elapsed())
    };
    let contenders = vec![
        Contender::timing_itself("CUDA's pool", || {
            let device = Device::new_cuda_with_stream(0).expect("a device");
            steps(&device).expect("steps")
        }),
        Contender::timing_itself("on demand", || {
            let memory = DeviceMemory::cuda(0).open().expect("a pool");
            steps(memory.device()).expect("steps")
        }),
    ];
    let rounds = alternate(contenders, scale.rounds.div_ceil(4));
    rounds.print("steps that are waited for", STEPS);
    let ratio = rounds.ratio("CUDA's pool", "on demand");
    report("default_pool_vs_on_demand", ratio, "x");
    Ok(())
}

/// Taking and dropping one block with a synchronization after each, as a loop that reads its loss does.
fn taking_memory(scale: &Scale) -> Result<()> {
    println!(
        "a block of {} MiB, taken, dropped and waited for",
        scale.block / MIB
    );
    for growth in [Growth::OnDemand, Growth::Preallocate, Growth::ReturnAtSync] {
        let memory = DeviceMemory::cuda(0)
            .growth(growth)
            .limit(2 * scale.block)
            .open()?;
        let times = (0..scale.rounds).map(|_| {
            let began = Instant::now();
            // Clearing it costs the same under each growth.
            drop(Tensor::zeros(
                scale.block as usize,
                DType::U8,
                memory.device(),
            )?);
            memory.device().synchronize()?;
            Ok(began.elapsed().as_secs_f64() * 1e6)
        });
        let times = times.collect::<Result<Vec<f64>>>()?;
        let name = format!("{growth:?}");
        println!("  {name:<36} {:>12.1} µs", median(times));
    }
    Ok(())
}

/// Blocks until the driver refuses one, under a limit.
fn keeping_a_limit(scale: &Scale) -> Result<()> {
    let limit = 8 * scale.block;
    let memory = DeviceMemory::cuda(0).limit(limit).open()?;
    let mut held = Vec::new();
    while let Ok(block) = Tensor::zeros((scale.block / 4) as usize, DType::U8, memory.device()) {
        held.push(block);
        if held.len() > 64 {
            break;
        }
    }
    let stats = memory.stats();
    println!("{} blocks under the limit; {stats}", held.len());
    let peak = stats.peak_reserved.unwrap_or(u64::MAX);
    report("peak_over_limit", peak as f64 / limit as f64, "x");
    Ok(())
}

/// Halves its size at each failure and returns to the whole after a success.
#[derive(Debug)]
struct Halve {
    whole: usize,
    now: usize,
}

impl BatchPolicy for Halve {
    fn size(&self, remaining: usize) -> usize {
        self.now.min(remaining)
    }

    fn succeeded(&mut self, _: &Completed) {
        self.now = self.whole;
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.now = (failed.size / 2).max(1);
    }
}

/// From the moment when an allocation is refused to the beginning of the next attempt, with a graph to drop in between.
fn recovering(scale: &Scale) -> Result<()> {
    let memory = DeviceMemory::cuda(0).limit(8 * scale.block).open()?;
    let samples = 4 * scale.size;
    let job = Job::on(memory.device(), scale.config, samples)?;
    let mut trainer = AdaptiveTrainer::builder(job.sgd()?)
        .memory(&memory)
        .policy(Halve {
            whole: samples,
            now: samples,
        })
        .build()?;
    let mut times = Vec::new();
    for _ in 0..scale.rounds {
        let (mut is_first, mut refused) = (true, None);
        trainer.step(&(&job.x, &job.y), |(x, y), _| {
            if let Some(refused) = refused.take() {
                times.push(Instant::elapsed(&refused).as_secs_f64() * 1e3);
            }
            let loss = job.model.loss(&x, &y)?;
            if std::mem::take(&mut is_first) {
                let too_much = Tensor::zeros((9 * scale.block) as usize, DType::U8, x.device());
                refused = too_much.is_err().then(Instant::now);
                too_much?;
            }
            Ok(loss)
        })?;
    }
    report("recovery_milliseconds", median(times), "ms");
    Ok(())
}

/// What contexts, modules and libraries take, in MiB, and other processes.
fn outside(memory: &DeviceMemory) -> String {
    let bytes = memory.stats().unaccounted;
    bytes.map_or("unknown".to_owned(), |bytes| format!("{} MiB", bytes / MIB))
}

/// What CUDA's documentation leaves open, as this driver answers it (docs/explanation/limits.md).
fn open_questions(scale: &Scale) -> Result<()> {
    println!("what the documentation leaves open, as this driver answers it");
    let memory = DeviceMemory::cuda(0).open()?;
    println!("  outside the pool: {}", outside(&memory));
    let first = Tensor::zeros(1, DType::U8, memory.device())?;
    let reserved = memory.stats().reserved;
    println!("  for a first byte the pool takes {reserved:?} bytes");
    let large = Tensor::zeros(scale.block as usize, DType::U8, memory.device())?;
    let in_use = memory.stats().in_use;
    drop(large);
    println!(
        "  what is dropped counts as free before the device has come to it: {}",
        memory.stats().in_use < in_use
    );
    drop(first);
    drop(memory);
    let limit = 3 * scale.block + 1;
    let memory = DeviceMemory::cuda(0).limit(limit).open()?;
    let block = |bytes: u64| Tensor::zeros(bytes as usize, DType::U8, memory.device());
    let enforcement = memory.stats().enforcement;
    println!("  a pool's greatest size: {enforcement:?} (hard: kept)");

    let mut held = Vec::new();
    while held.len() < 4096 {
        match block(MIB) {
            Ok(block) => held.push(block),
            Err(_) => break,
        }
    }
    let reserved = memory.stats().reserved.unwrap_or(0);
    println!("  of {limit} bytes it lets blocks of 1 MiB take {reserved}");

    // A pool full of small free pieces, of which the last uses are not known to be over.
    held.clear();
    println!(
        "  the pool makes one block of its freed pieces by itself: {}",
        block(2 * scale.block).is_ok()
    );
    memory.device().synchronize()?;
    println!(
        "  … after a synchronization: {}",
        block(2 * scale.block).is_ok()
    );
    memory.trim()?;
    println!("  … after a trim: {}", block(2 * scale.block).is_ok());

    let factor = Tensor::ones((256, 256), DType::F32, memory.device())?;
    memory.device().synchronize()?;
    let before = memory.stats();
    let product = factor.matmul(&factor)?;
    memory.device().synchronize()?;
    let after = memory.stats();
    let product = product.elem_count() as u64 * 4;
    let in_pool = after
        .in_use
        .zip(before.in_use)
        .map(|(after, before)| after - before - product);
    let outside = after.unaccounted.zip(before.unaccounted);
    let outside = outside.map(|(after, before)| after.saturating_sub(before));
    println!(
        "  cuBLAS's workspace for a first product: {in_pool:?} bytes in the pool, {outside:?} outside"
    );

    drop(factor);
    memory.reset_peak();
    let stats = memory.stats();
    println!(
        "  a peak begins anew at the present use: {}",
        stats.peak == stats.in_use
    );
    Ok(())
}

fn main() -> Result<()> {
    if counts::are_asked_for() {
        return counts::print();
    }
    let scale = Scale::new();
    if layers::is_once() || layers::only().is_some() {
        return layers::against_others(&DeviceMemory::cuda(0).open()?);
    }
    open_questions(&scale)?;
    against_a_loop_by_hand(&scale)?;
    against_the_default_pool(&scale)?;
    taking_memory(&scale)?;
    keeping_a_limit(&scale)?;
    recovering(&scale)?;
    optimizers::against_others(&scale)?;
    on_host::moments(&scale)?;
    let memory = DeviceMemory::cuda(0).open()?;
    layers::against_others(&memory)?;
    println!("outside the pool after all layers: {}", outside(&memory));
    drop(memory);
    layers::with_events(&DeviceMemory::cuda(0).event_tracking(true).open()?)?;
    layers::print_pytorchs();
    Ok(())
}
