//! Optimizer state in fewer bits: its bytes, and what it does to the loss of `train_text`.

#[path = "../../examples/train_text/corpus.rs"]
#[allow(dead_code, reason = "the example uses more of it")]
mod corpus;
#[path = "../../examples/train_text/initial.rs"]
mod initial;

use std::sync::Arc;

use anyhow::Result;
use candle_core::{DType, Device, Var};
use candle_headroom::optim::{FusedBuilder, LossScale, Moments, ParamsAdamW};
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};
use candle_nn::{VarBuilder, VarMap};
use corpus::{Corpus, batches};
use initial::initialise;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::support::figure;
use crate::support::parameters::transformer;
use crate::support::transformer::{Config, Transformer};

/// Steps whose mean loss is compared.
const LAST: usize = 20;
/// Bytes of a text.
const CONTEXT: usize = 64;

type Builder = FusedBuilder<ParamsAdamW>;

pub fn run(quick: bool) -> Result<()> {
    for (name, moments) in [("8bit", Moments::EightBit), ("f32", DType::F32.into())] {
        let bytes = bytes_per_parameter(moments)?;
        figure(&format!("fit/state_bytes_per_parameter_{name}"), bytes, "B");
    }
    let (steps, samples) = if quick { (60, 16) } else { (300, 64) };
    println!("train_text with {steps} steps of {samples} texts, mean loss of the last {LAST}:");
    let job = Job {
        corpus: Arc::new(Corpus::read(&Corpus::own_files()?, CONTEXT)?),
        steps,
        samples,
    };
    let masters = |builder: Builder| builder.master_weights();
    let f32 = job.loss("f32", DType::F32, |builder| builder)?;
    let gap = |name: &str, dtype, options: &dyn Fn(Builder) -> Builder| -> Result<()> {
        let gap = (job.loss(name, dtype, options)? / f32 - 1.).abs();
        figure(&format!("fit/loss_gap_{name}"), 100. * gap, "%");
        Ok(())
    };
    gap("8bit", DType::F32, &|b| b.moments(Moments::EightBit))?;
    gap("bf16", DType::BF16, &masters)?;
    gap("bf16_stochastic", DType::BF16, &|b| b.stochastic_rounding())?;
    gap("f16", DType::F16, &|b| {
        masters(b).loss_scale(LossScale::dynamic())
    })?;
    Ok(())
}

/// What building AdamW allocates for a model of large matrices.
fn bytes_per_parameter(moments: Moments) -> Result<f64> {
    let shapes = transformer(8192, 256, 512, 2);
    let vars = shapes
        .iter()
        .map(|shape| Var::zeros(shape.as_slice(), DType::F32, &Device::Cpu));
    let vars: Vec<Var> = vars.collect::<candle_core::Result<_>>()?;
    let elements: usize = vars.iter().map(|var| var.elem_count()).sum();
    let memory = DeviceMemory::host().open()?;
    let in_use = || memory.in_use().unwrap_or_default();
    let before = in_use();
    let optimizer = AdamW::builder(vars).moments(moments).build()?;
    let bytes = in_use() - before;
    println!(
        "{bytes} bytes allocated for {elements} parameters: {optimizer_bytes} counted",
        optimizer_bytes = optimizer.state_bytes()
    );
    Ok(bytes as f64 / elements as f64)
}

/// The run of `train_text` with its own text, without a budget.
struct Job {
    corpus: Arc<Corpus>,
    steps: usize,
    samples: usize,
}

impl Job {
    /// The mean loss of the last steps. Every run has the same initial parameters and batches.
    fn loss(&self, name: &str, dtype: DType, options: impl Fn(Builder) -> Builder) -> Result<f64> {
        let config = Config {
            context: CONTEXT,
            width: 64,
            heads: 4,
            layers: 2,
        };
        let mut rng = StdRng::seed_from_u64(0);
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
        let model = Transformer::new(config, vb)?;
        initialise(&varmap, &mut rng)?;
        let builder = AdamW::builder(&varmap).learning_rate(5e-3);
        let mut trainer = AdaptiveTrainer::builder(options(builder).build()?).build()?;
        let mut losses = Vec::new();
        let loader = batches(&self.corpus, (self.samples, CONTEXT), 0, None)?;
        for batch in loader.take(self.steps) {
            let batch = batch?;
            let report = trainer.step(&batch, |(bytes, next), _| model.loss(&bytes, &next))?;
            losses.push(report.loss.read()?);
        }
        let last = &losses[losses.len().saturating_sub(LAST)..];
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        println!("  {name:<16} {mean:.4} nats a byte");
        Ok(mean)
    }
}
