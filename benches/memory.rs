//! The memory of several micro-batches, compared with one, with the whole batch, and with the naive loop.
//!
//! `cargo bench --bench memory [-- --quick]`

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use candle_core::Result;
use candle_core::backprop::GradStore;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, GradientAccumulator, TrackingAllocator};
use support::transformer::Config;
use support::{Contender, Job, alternate, figure, is_quick};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

/// The peak of `work` above what was in use before it, in bytes.
fn peak(
    memory: &DeviceMemory,
    work: impl FnOnce() -> candle_headroom::Result<()>,
) -> candle_headroom::Result<f64> {
    let scope = memory.peak_scope();
    work()?;
    let (peak, start) = (
        scope.peak().unwrap_or_default(),
        scope.start().unwrap_or_default(),
    );
    Ok((peak - start) as f64)
}

fn naive(job: &Job, count: usize, size: usize) -> Result<()> {
    let mut store = GradStore::default();
    for i in 0..count {
        store.extend(job.loss(i * size, size)?.backward()?)?;
    }
    Ok(())
}

const CHILD: &str = "--child";
const RETURNED: &str = "returned";

/// The time of some steps of a trainer, in a process whose freed memory is kept or returned: glibc's thresholds cannot be set back.
fn in_a_process(mode: &'static str) -> Contender<'static> {
    Contender::timing_itself(mode, move || {
        let program = std::env::current_exe().expect("this program");
        let output = Command::new(program).args([CHILD, mode]).output();
        let output = output.expect("a child process");
        let text = String::from_utf8_lossy(&output.stdout);
        let seconds = text.trim().parse();
        Duration::from_secs_f64(seconds.unwrap_or_else(|_| panic!("{output:?}")))
    })
}

fn time_steps(mode: &str) -> candle_headroom::Result<()> {
    const SAMPLES: usize = 16;
    let job = Job::new(
        Config {
            context: 64,
            width: 128,
            heads: 4,
            layers: 2,
        },
        SAMPLES,
    )?;
    let host = DeviceMemory::host();
    let memory = match mode {
        RETURNED => host.return_freed().open()?,
        _ => host.open()?,
    };
    let mut trainer = AdaptiveTrainer::builder(job.sgd()?)
        .memory(&memory)
        .build()?;
    let mut step = || -> candle_headroom::Result<()> {
        let batch = (job.x.clone(), job.y.clone());
        trainer.step(&batch, |(x, y), _| job.model.loss(&x, &y))?;
        Ok(())
    };
    (0..3).try_for_each(|_| step())?;
    let began = Instant::now();
    (0..10).try_for_each(|_| step())?;
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}

fn main() -> candle_headroom::Result<()> {
    let mut arguments = std::env::args().skip_while(|argument| argument != CHILD);
    if let Some(mode) = arguments.nth(1) {
        return time_steps(&mode);
    }
    let rounds = if is_quick() { 5 } else { 15 };
    let steps = alternate(vec![in_a_process("kept"), in_a_process(RETURNED)], rounds);
    steps.print("a step with what it frees", 10);
    figure(
        "memory/step_kept_vs_returned",
        steps.ratio("kept", RETURNED),
        "x",
    );

    let (size, count) = if is_quick() { (4, 6) } else { (8, 16) };
    let config = Config {
        context: 64,
        width: 128,
        heads: 4,
        layers: 2,
    };
    let job = Job::new(config, size * count)?;
    let memory = DeviceMemory::host().open()?;
    naive(&job, 1, size)?; // one-time allocations, such as thread pools

    let one = peak(&memory, || naive(&job, 1, size).map_err(Into::into))?;
    let whole = peak(&memory, || naive(&job, 1, size * count).map_err(Into::into))?;
    let extended = peak(&memory, || naive(&job, count, size).map_err(Into::into))?;
    let ours = peak(&memory, || {
        let mut accumulator = GradientAccumulator::builder(job.sgd()?).build()?;
        for i in 0..count {
            accumulator.add(job.loss(i * size, size)?, size)?;
        }
        Ok(())
    })?;
    let parameters = job.parameter_bytes() as f64;

    println!("{count} micro-batches of {size} × 64 bytes, above the model itself:");
    for (name, bytes) in [
        ("parameters", parameters),
        ("one micro-batch", one),
        ("accumulated", ours),
        ("naive, with `extend`", extended),
        ("the whole batch", whole),
    ] {
        println!("  {name:<24} {:.2} MiB", bytes / (1 << 20) as f64);
    }
    figure("memory/accumulated_vs_naive", ours / extended, "x");
    figure("memory/accumulated_vs_full_batch", ours / whole, "x");
    figure(
        "memory/micro_batches_vs_one_plus_parameters",
        ours / (one + parameters),
        "x",
    );
    Ok(())
}
