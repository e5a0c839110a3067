//! Mixed precision: parameters and activations of 16 bits, with the optimizer's state in f32.
//! Run: `cargo run --example half_precision`.
//! Prints the first and the last loss of a training in f32, bf16 and f16, and the bytes of state.

use candle_core::{DType, Device, Tensor};
use candle_headroom::nn::{Activation, Module, VarBuilder, VarMap, linear, loss, seq};
use candle_headroom::optim::LossScale;
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, Result};

fn train(dtype: DType, x: &Tensor, y: &Tensor) -> Result<()> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
    let model = seq()
        .add(linear(2, 64, vb.pp("hidden"))?)
        .add(Activation::Relu)
        .add(linear(64, 2, vb.pp("head"))?);

    let mut builder = AdamW::builder(&varmap).learning_rate(1e-2);
    if dtype != DType::F32 {
        // An f32 copy, in which steps add up that are too small for 16 bits. For bf16 there is also
        // `stochastic_rounding()`, which needs no copy.
        builder = builder.master_weights();
    }
    if dtype == DType::F16 {
        // Small gradients would become 0 in f16. bf16 has the range of f32 and needs no scale.
        builder = builder.loss_scale(LossScale::dynamic());
    }
    let optimizer = builder.build()?;
    let state = ByteSize(optimizer.state_bytes());
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;

    let mut losses = Vec::new();
    for _ in 0..60 {
        // There is no autocast: cast what goes into the model. The losses of `nn` are f32.
        let report = trainer.step(&(x, y), |(x, y), _| {
            loss::cross_entropy(&model.forward(&x.to_dtype(dtype)?)?, &y)
        })?;
        losses.push(report.loss()?);
    }
    let skipped = trainer.optimizer().progress()?.skipped; // gradients that overflowed
    let (first, last) = (losses[0], losses[59]);
    println!("{dtype:?}: loss {first:.3} → {last:.3}, {skipped} steps skipped, state {state}");
    Ok(())
}

fn main() -> Result<()> {
    let x = Tensor::randn(0f32, 1., (300, 2), &Device::Cpu)?; // [samples, features]
    let y = x.sqr()?.sum(1)?.gt(1.4f32)?.to_dtype(DType::U32)?; // far from the middle, or near it
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        train(dtype, &x, &y)?;
    }
    Ok(())
}
