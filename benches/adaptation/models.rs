//! Trains real models under real limits on host memory, and compares predicted with measured peaks.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed, Plan, Recompute};
use candle_headroom::error::MemoryReading;
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, Predictive};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, VarMap, conv2d, linear, loss};

use crate::support::transformer::{Config, Transformer};

/// The predicted and the measured peak of a micro-batch, in bytes above what was in use.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    pub predicted: u64,
    pub measured: u64,
    /// No micro-batch of this size had run before.
    pub is_new: bool,
}

impl Peak {
    pub fn error(&self) -> f64 {
        self.predicted.abs_diff(self.measured) as f64 / self.measured as f64
    }
}

/// The default policy, which also records its predictions.
#[derive(Debug)]
struct Watched {
    inner: Predictive,
    each: usize,
    seen: Vec<usize>,
    peaks: Arc<Mutex<Vec<Peak>>>,
}

impl BatchPolicy for Watched {
    fn size(&self, remaining: usize) -> usize {
        self.inner.size(remaining)
    }

    fn begin(&mut self, batch: &Extent) {
        self.each = batch.cost.div_ceil(batch.samples);
        self.inner.begin(batch);
    }

    fn prepare(&mut self, now: &MemoryReading) {
        self.inner.prepare(now);
    }

    fn succeeded(&mut self, completed: &Completed) {
        let cost = completed.size * self.each;
        let own = completed.peak.zip(completed.before);
        if let (Some(predicted), Some((peak, before))) = (self.inner.model().predict(cost), own) {
            self.peaks.lock().expect("one thread").push(Peak {
                predicted,
                measured: peak - before,
                is_new: !self.seen.contains(&cost),
            });
        }
        self.seen.push(cost);
        self.inner.succeeded(completed);
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.inner.failed(failed);
    }

    fn recomputes(&self) -> bool {
        self.inner.recomputes()
    }

    fn set_recompute(&mut self, recompute: Recompute) {
        self.inner.set_recompute(recompute);
    }

    fn plan(&self) -> Option<Plan> {
        self.inner.plan()
    }
}

/// Results of a model's runs.
#[derive(Debug, Default)]
pub struct Shown {
    pub peaks: Vec<Peak>,
    /// The peak of each step divided by its limit.
    pub over_limit: Vec<f64>,
    pub failures: usize,
}

/// Trains once with each budget: a limit of that many MiB above what is in use at the start.
fn train(
    memory: &DeviceMemory,
    vars: Vec<Var>,
    budgets: &[u64],
    batches: &[(Tensor, Tensor)],
    mut model: impl FnMut(&Tensor, &Tensor) -> Result<Tensor>,
) -> candle_headroom::Result<Shown> {
    let mut shown = Shown::default();
    for budget in budgets {
        let peaks = Arc::new(Mutex::new(Vec::new()));
        let policy = Watched {
            inner: Predictive::default(),
            each: 1,
            seen: Vec::new(),
            peaks: Arc::clone(&peaks),
        };
        let optimizer = AdamW::builder(vars.clone()).learning_rate(1e-4).build()?;
        let limit = memory.in_use().unwrap_or_default() + (budget << 20);
        memory.set_limit(limit)?;
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .memory(memory)
            .policy(policy)
            .build()?;
        let mut sizes = Vec::new();
        for batch in batches {
            let report = trainer.step(batch, |(x, y), _| model(&x, &y))?;
            shown
                .over_limit
                .push(report.peak.unwrap_or_default() as f64 / limit as f64);
            shown.failures += report.retries;
            sizes.push(report.micro_batch());
        }
        let plan = trainer.plan().map(|plan| plan.to_string());
        println!(
            "  {:<9} {sizes:?} {}",
            ByteSize::mib(*budget).to_string(),
            plan.unwrap_or_default()
        );
        shown.peaks.append(&mut peaks.lock().expect("one thread"));
    }
    Ok(shown)
}

/// Trains the transformer of the `train_text` example on texts of several lengths.
pub fn transformer(memory: &DeviceMemory, steps: usize) -> candle_headroom::Result<Shown> {
    let varmap = VarMap::new();
    let config = Config {
        context: 64,
        width: 64,
        heads: 4,
        layers: 2,
    };
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = Transformer::new(config, vb)?;
    let text = |length: usize| -> Result<(Tensor, Tensor)> {
        let bytes = |shift: usize| {
            let bytes = (0..64 * length).map(|i| ((i * 31 + shift) % 251) as u32);
            Tensor::from_iter(bytes, &Device::Cpu)?.reshape((64, length))
        };
        Ok((bytes(0)?, bytes(31)?))
    };
    let lengths = [64, 64, 24, 64, 48, 32, 64];
    let batches = (0..steps).map(|step| text(lengths[step % lengths.len()]));
    let batches = batches.collect::<Result<Vec<_>>>()?;
    train(
        memory,
        varmap.all_vars(),
        &[40, 72, 120],
        &batches,
        |x, y| model.loss(x, y),
    )
}

/// Two convolutions and a linear layer, for images of 32 × 32.
struct Pictures {
    first: Conv2d,
    second: Conv2d,
    head: Linear,
}

impl Pictures {
    fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x)?.relu()?.avg_pool2d(2)?;
        let x = self.second.forward(&x)?.relu()?.avg_pool2d(2)?;
        loss::cross_entropy(&self.head.forward(&x.flatten_from(1)?)?, y)
    }
}

/// Trains the convolutional model.
pub fn convolution(memory: &DeviceMemory, steps: usize) -> candle_headroom::Result<Shown> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let config = Conv2dConfig {
        padding: 1,
        ..Default::default()
    };
    let model = Pictures {
        first: conv2d(3, 8, 3, config, vb.pp("first"))?,
        second: conv2d(8, 16, 3, config, vb.pp("second"))?,
        head: linear(16 * 64, 10, vb.pp("head"))?,
    };
    let values = (0..64 * 3 * 32 * 32).map(|i| ((i * 7 + 1) as f32).sin());
    let x = Tensor::from_iter(values, &Device::Cpu)?.reshape((64, 3, 32, 32))?;
    let y = Tensor::from_iter((0..64).map(|i| i % 10u32), &Device::Cpu)?;
    let batches = vec![(x, y); steps];
    train(
        memory,
        varmap.all_vars(),
        &[16, 32, 64],
        &batches,
        |x, y| model.loss(x, y),
    )
}
