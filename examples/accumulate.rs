//! Gradient accumulation with an uneven tail: four batches of 16 give the update of a batch of 64.
//! Run: `cargo run --example accumulate`.
//! Prints the loss of each update, from batches of 16 and of 64; an epoch has 100 samples.

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Loader, TensorDataset, stack};
use candle_headroom::{AccumulatingTrainer, AdamW, Result, StepReport};
use candle_nn::{Init, Linear, Module, VarBuilder, VarMap, loss};

/// Trains for three epochs, with an update for every `count` batches of `size` samples.
fn train((x, y): (Tensor, Tensor), size: usize, count: usize) -> Result<Vec<f64>> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    // Not random, so that both runs begin alike.
    let model = Linear::new(vb.get_with_hints((1, 16), "weight", Init::Const(0.))?, None);
    let optimizer = AdamW::builder(&varmap).learning_rate(0.1).build()?;
    let mut trainer = AccumulatingTrainer::builder(optimizer, count).build()?;

    let dataset = TensorDataset::new((x, y))?;
    let loader = Loader::builder(dataset, stack).batch(size).shuffle(7);
    let mut loader = loader.epochs(3).build()?;
    let mut reports = Vec::new();
    for epoch in loader.epochs() {
        for batch in epoch {
            // A report comes with every `count`-th batch. Batches count by their samples.
            let report = trainer.step(batch, |(x, y), _| loss::mse(&model.forward(&x)?, &y))?;
            reports.extend(report);
        }
        // The end of the epoch: batches of 16, 16 and 4 samples are left.
        reports.extend(trainer.update()?);
    }
    reports.iter().map(StepReport::loss).collect()
}

fn main() -> Result<()> {
    let x = Tensor::randn(0f32, 1., (100, 16), &Device::Cpu)?; // [samples, features]
    let y = x.sum_keepdim(1)?; // [samples, 1]
    let small = train((x.clone(), y.clone()), 16, 4)?;
    let large = train((x, y), 64, 1)?;
    println!("batches of 16, accumulated: {small:.4?}");
    println!("batches of 64:              {large:.4?}");

    let differences = small.iter().zip(&large).map(|(a, b)| (a - b).abs() / b);
    let largest = differences.fold(0., f64::max);
    println!("largest difference: {largest:.0e} of the loss");
    Ok(())
}
