//! One AdamW step: candle's, this crate's with moments in f32 and of 8 bits, and a bare sweep over the same memory.
//!
//! `cargo bench --bench optimizer [-- --quick]`

mod support;

use std::alloc::System;

use candle_core::Device;
use candle_core::utils::barrier_pool;
use candle_headroom::AdamW;
use candle_headroom::optim::{Commit, Moments, ParamsAdamW};
use candle_nn::Optimizer;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::parameters::{Parameters, transformer};
use support::{Contender, Rounds, alternate, figure, is_quick};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Reads four numbers and writes three for each parameter, as AdamW has to: 28 bytes. With buffers of the same lengths as the
/// parameters', by candle's threads, in stretches of the same length, with one addition for each number that is written.
struct Sweep(Vec<[Vec<f32>; 4]>);

impl Sweep {
    const STRETCH: usize = 16 * 1024;

    fn new(shapes: &[Vec<usize>]) -> Self {
        let lens = shapes.iter().map(|shape| shape.iter().product());
        let buffers = lens.map(|len| std::array::from_fn(|i| vec![i as f32 * 1e-3; len]));
        Self(buffers.collect())
    }

    fn run(&mut self) {
        let stretches = self.0.iter_mut().flat_map(|[p, g, m, v]| {
            let [p, m, v] = [p, m, v].map(|values| values.chunks_mut(Self::STRETCH));
            p.zip(g.chunks(Self::STRETCH)).zip(m.zip(v))
        });
        let stretches: Vec<_> = stretches.map(parking_lot::Mutex::new).collect();
        barrier_pool().execute_chunked(stretches.len(), |range| {
            for stretch in &stretches[range] {
                let ((p, g), (m, v)) = &mut *stretch.lock();
                for ((p, g), (m, v)) in p.iter_mut().zip(*g).zip(m.iter_mut().zip(v.iter_mut())) {
                    *m += *g;
                    *v += *g;
                    *p += *m;
                }
            }
        });
    }
}

struct Measured {
    rounds: Rounds,
    allocations: usize,
}

fn measure(title: &str, shapes: &[Vec<usize>], rounds: usize) -> candle_headroom::Result<Measured> {
    let ours = Parameters::on(&Device::Cpu, shapes)?;
    let coded = Parameters::on(&Device::Cpu, shapes)?;
    let candles = Parameters::on(&Device::Cpu, shapes)?;
    let mut fused = AdamW::builder(ours.vars).build()?;
    let builder = AdamW::builder(coded.vars);
    let mut eight_bit = builder.moments(Moments::EightBit).build()?;
    let mut candle = candle_nn::AdamW::new(candles.vars, ParamsAdamW::default())?;
    let mut sweep = Sweep::new(shapes);
    fused.commit(&ours.gradients)?;
    eight_bit.commit(&coded.gradients)?;

    let region = Region::new(ALLOCATOR);
    for _ in 0..3 {
        fused.commit(&ours.gradients)?;
        eight_bit.commit(&coded.gradients)?;
    }
    let change = region.change();
    let allocations = change.allocations + change.reallocations + change.deallocations;

    let contenders = vec![
        Contender::new("candle_nn", || {
            candle.step(&candles.gradients).expect("a step")
        }),
        Contender::new("fused", || {
            fused.commit(&ours.gradients).expect("a step");
        }),
        Contender::new("fused_8bit", || {
            eight_bit.commit(&coded.gradients).expect("a step");
        }),
        Contender::new("sweep", || sweep.run()),
    ];
    let rounds = alternate(contenders, rounds);
    let millions = ours.elements as f64 / 1e6;
    rounds.print(
        &format!(
            "{title}: {millions:.1} million parameters in {}",
            shapes.len()
        ),
        1,
    );
    Ok(Measured {
        rounds,
        allocations,
    })
}

/// Whether glibc was told to keep what is freed: then candle's temporaries are not faulted in anew in each step.
fn has_steady_heap() -> bool {
    std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_some()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = is_quick();
    let rounds = if quick { 5 } else { 15 };
    let one = vec![vec![16 * 1024 * 1024]];
    if has_steady_heap() {
        let large = measure("one large, heap kept", &one, rounds)?;
        let ratio = large.rounds.ratio("candle_nn", "fused");
        figure("optimizer/adamw_speedup_one_large_steady_heap", ratio, "x");
        let ratio = large.rounds.ratio("sweep", "fused");
        let name = "optimizer/adamw_vs_memory_sweep_one_large_steady_heap";
        figure(name, ratio, "x");
        return Ok(());
    }
    let many = vec![vec![4096]; 1000];
    let layers = if quick { 2 } else { 6 };
    let layers = transformer(8192, 256, 512, layers);
    let measured = [
        ("one_large", measure("one large", &one, rounds)?),
        ("many_small", measure("many small", &many, 3 * rounds)?),
        ("transformer", measure("transformer", &layers, rounds)?),
    ];
    // The same with the only setting of glibc's that makes candle faster.
    let again = std::process::Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env("MALLOC_TRIM_THRESHOLD_", "8589934592")
        .env("MALLOC_MMAP_THRESHOLD_", "8589934592")
        .status()?;
    assert!(again.success(), "{again}");

    for (name, measured) in &measured {
        let ratio = measured.rounds.ratio("sweep", "fused");
        figure(
            &format!("optimizer/adamw_vs_memory_sweep_{name}"),
            ratio,
            "x",
        );
    }
    for (name, measured) in &measured {
        let ratio = measured.rounds.ratio("candle_nn", "fused");
        figure(&format!("optimizer/adamw_speedup_{name}"), ratio, "x");
        let ratio = measured.rounds.ratio("candle_nn", "fused_8bit");
        figure(&format!("optimizer/adamw_8bit_speedup_{name}"), ratio, "x");
        let ratio = measured.rounds.ratio("fused_8bit", "fused");
        let name = format!("optimizer/adamw_8bit_time_vs_f32_{name}");
        figure(&name, ratio, "x");
    }
    let sweeps = measured
        .iter()
        .map(|(_, measured)| measured.rounds.ratio("sweep", "fused"));
    let worst = sweeps.fold(f64::INFINITY, f64::min);
    figure("optimizer/adamw_vs_memory_sweep", worst, "x");
    let allocations: usize = measured
        .iter()
        .map(|(_, measured)| measured.allocations)
        .sum();
    figure("optimizer/commit_allocations", allocations as f64, "");
    Ok(())
}
