//! Checkpoints: a run that ends early, by Ctrl-C for example, goes on later with the same bits.
//! Run: `cargo run --example resume -- run-7`, press Ctrl-C, and run it again; or without a folder.
//! Prints where the run goes on, and without a folder whether 25 + 35 updates equal 60.

use std::{ops::ControlFlow::Break, path::Path};

use candle_core::{DType, Device, Tensor};
use candle_headroom::checkpoint::{Checkpoints, Signal};
use candle_headroom::data::{Loader, TensorDataset, stack};
use candle_headroom::nn::{Dropout, Init, Linear, Module, VarBuilder, VarMap, loss};
use candle_headroom::{AdamW, AdaptiveTrainer, Result};

/// Trains from the beginning, or from where the run in this folder stopped, to update `last`.
fn train(folder: &Path, last: u64) -> Result<Vec<f32>> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    // Not random, so that `main` can compare two runs.
    let model = Linear::new(vb.get_with_hints((1, 8), "weight", Init::Const(0.))?, None);
    let dropout = Dropout::new(0.1); // its random numbers come back after a resume
    let optimizer = AdamW::builder(&varmap).learning_rate(1e-2).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;

    let x = Tensor::arange(0f32, 800., &Device::Cpu)?.sin()?;
    let x = x.reshape((100, 8))?; // [samples, features]
    let dataset = TensorDataset::new((x.clone(), x.sum_keepdim(1)?))?;
    let loader = Loader::builder(dataset, stack).batch(10).shuffle(7);

    let mut checkpoints = Checkpoints::builder(folder)
        .every_updates(1000) // without it every 30 minutes
        .on_signals([Signal::Interrupt, Signal::Terminate])
        .open()?;
    let loader = checkpoints.resume(&mut trainer, loader.endless().build()?)?;
    if let Some(resumed) = checkpoints.resumed() {
        println!("{resumed}");
    }
    let left = last.saturating_sub(trainer.updates());
    for batch in loader.take(left as usize) {
        let report = trainer.step(batch, |(x, y), _| {
            loss::mse(&model.forward(&dropout.forward(&x, true)?)?, &y)
        })?;
        if let Break(stopped) = checkpoints.after(&report, &trainer)? {
            println!("{stopped}"); // SIGINT after step 1234: saved in run-7/step-000001234
            std::process::exit(stopped.signal.exit_status());
        }
    }
    checkpoints.save_now(&trainer)?;
    Ok(model.weight().flatten_all()?.to_vec1()?)
}

fn main() -> anyhow::Result<()> {
    if let Some(folder) = std::env::args().nth(1) {
        train(Path::new(&folder), 50_000)?;
        return Ok(());
    }
    let temporary = tempfile::tempdir()?;
    let [whole, parts] = ["whole", "parts"].map(|name| temporary.path().join(name));
    let (expected, _) = (train(&whole, 60)?, train(&parts, 25)?);
    println!("the same bits: {}", train(&parts, 60)? == expected);
    Ok(())
}
