//! `nn::BatchNorm` in a trainer that retries.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::batch_norm::BatchNorm;
use candle_headroom::testing::out_of_memory;
use candle_headroom::{AdamW, AdaptiveTrainer};

use crate::check::{numbers, same_bits};

const EPS: f64 = 1e-3;

/// A running mean and variance.
fn running(channels: usize, dtype: DType) -> Result<[Tensor; 2]> {
    let variance = (numbers(&[channels], 5).abs()? + 0.5)?;
    Ok([
        numbers(&[channels], 4).to_dtype(dtype)?,
        variance.to_dtype(dtype)?,
    ])
}

#[test]
fn a_micro_batch_that_does_not_fit_leaves_no_trace_in_the_statistics() -> Result<()> {
    let layer = || -> Result<BatchNorm> {
        let [mean, variance] = running(3, DType::F32)?;
        let parameter = || Var::ones(3, DType::F32, &Device::Cpu);
        let (weight, bias) = (parameter()?.into_inner(), parameter()?.into_inner());
        BatchNorm::new(3, mean, variance, weight, bias, EPS)
    };
    let norm = layer()?;
    let (weight, bias) = norm.weight_and_bias().expect("both");
    let vars = vec![Var::from_tensor(weight)?, Var::from_tensor(bias)?];
    let optimizer = AdamW::builder(vars).build().expect("an optimizer");
    let builder = AdaptiveTrainer::builder(optimizer);
    let builder = builder.buffers([norm.running_mean(), norm.running_var()]);
    let mut trainer = builder.build().expect("a trainer");

    let xs = numbers(&[11, 3, 4], 1).to_dtype(DType::F32)?;
    let report = trainer.step(&xs, |xs, _| {
        let ys = norm.forward_train(&xs)?;
        match xs.dim(0)? {
            0..=4 => ys.sqr()?.mean_all(),
            _ => Err(out_of_memory()),
        }
    });
    let report = report.expect("a step in parts");
    assert!(report.retries > 0 && report.sizes.len() > 1);

    let once = layer()?;
    let mut start = 0;
    for size in &report.sizes {
        once.forward_train(&xs.narrow(0, start, *size)?)?;
        start += size;
    }
    assert_eq!(start, 11);
    same_bits(norm.running_mean(), once.running_mean())?;
    same_bits(norm.running_var(), once.running_var())
}
