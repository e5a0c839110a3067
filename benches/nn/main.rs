//! Layers of `candle_headroom::nn` against candle's compositions of plain operations: time, and memory kept for each sample.
//!
//! `cargo bench --bench nn [-- --quick]`

mod llama;
mod operations;
#[path = "../support/mod.rs"]
mod support;

use candle_core::{Device, Result, Tensor};
use candle_headroom::{DeviceMemory, TrackingAllocator};
use llama::{Composition, Layers, Lean, Llama, TIME};
use support::{Contender, alternate, figure, is_quick, measures_with_steady_heap};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const MIB: f64 = (1 << 20) as f64;

/// Tokens, and the ones that follow.
fn texts(samples: usize) -> Result<(Tensor, Tensor)> {
    let tokens = |shift: usize| {
        let tokens = (0..samples * TIME).map(|i| ((i + shift) * 31 % 4093) as u32);
        Tensor::from_iter(tokens, &Device::Cpu)?.reshape((samples, TIME))
    };
    Ok((tokens(0)?, tokens(1)?))
}

/// MiB for each sample: the slope of the peak between two batch sizes.
fn slope(loss: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> candle_headroom::Result<f64> {
    let memory = DeviceMemory::host().open()?;
    let peak = |samples| -> candle_headroom::Result<f64> {
        let (tokens, next) = texts(samples)?;
        let scope = memory.peak_scope();
        loss(&tokens, &next)?.backward()?;
        let (peak, start) = (
            scope.peak().unwrap_or_default(),
            scope.start().unwrap_or_default(),
        );
        Ok((peak - start) as f64)
    };
    peak(8)?; // thread pools, and what else is allocated once
    let (few, many) = (8, 24);
    Ok((peak(many)? - peak(few)?) / (many - few) as f64 / MIB)
}

fn llama(rounds: usize) -> candle_headroom::Result<()> {
    let model = Llama::new()?;
    let (tokens, next) = texts(8)?;
    let losses = [
        model
            .loss::<Composition>(&tokens, &next)?
            .to_scalar::<f32>()?,
        model.loss::<Lean>(&tokens, &next)?.to_scalar()?,
        model.loss_in_parts::<Lean>(&tokens, &next)?.to_scalar()?,
    ];
    println!("llama2-c, 8 samples of {TIME} tokens: losses {losses:?}");
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4));

    let composition = slope(|x, y| model.loss::<Composition>(x, y))?;
    let lean = slope(|x, y| model.loss::<Lean>(x, y))?;
    let in_parts = slope(|x, y| model.loss_in_parts::<Lean>(x, y))?;
    figure("nn/llama2c_composition_mib_per_sample", composition, "MiB");
    figure("nn/llama2c_mib_per_sample", lean, "MiB");
    figure("nn/llama2c_loss_in_parts_mib_per_sample", in_parts, "MiB");

    fn step<L: Layers>(model: &Llama, tokens: &Tensor, next: &Tensor) {
        let loss = model.loss::<L>(tokens, next);
        loss.and_then(|loss| loss.backward()).expect("a step");
    }
    let contenders = vec![
        Contender::new("composition", || {
            step::<Composition>(&model, &tokens, &next)
        }),
        Contender::new("ours", || step::<Lean>(&model, &tokens, &next)),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print("llama2-c, a step of 8 samples", 1);
    let ratio = rounds.ratio("ours", "composition");
    figure("nn/llama2c_step_vs_composition", ratio, "x");
    Ok(())
}

fn main() -> candle_headroom::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let rounds = if is_quick() { 5 } else { 41 };
    llama(rounds)?;
    operations::compare(rounds)?;
    Ok(())
}
