//! A small training, every step of which is a function of its number and of what the trainer saves.
#![allow(dead_code)] // each test program uses its own part

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
use candle_headroom::train::{Resumable, StepReport};
use candle_headroom::{AdamW, AdaptiveTrainer, Result};

pub struct Run {
    pub trainer: AdaptiveTrainer<AdamW>,
    w: Var,
    b: Var,
}

/// Values of a curve, so that no two are alike.
fn curve(shape: &[usize], phase: f64) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| (i as f64 * 0.7 + phase).sin() as f32);
    let values = Tensor::from_iter(values, &Device::Cpu).unwrap();
    values.reshape(shape).unwrap()
}

impl Run {
    pub fn new() -> Self {
        Self::sized(3, 2)
    }

    pub fn sized(rows: usize, columns: usize) -> Self {
        let var = |shape: &[usize], phase| Var::from_tensor(&curve(shape, phase)).unwrap();
        let (w, b) = (var(&[rows, columns], 0.1), var(&[columns], 0.2));
        let named = vec![("layer.weight", w.clone()), ("layer.bias", b.clone())];
        let optimizer = AdamW::builder(named).learning_rate(0.05).build().unwrap();
        let builder = AdaptiveTrainer::builder(optimizer).seed(7);
        let trainer = builder.policy(Fixed::new(2).unwrap()).build().unwrap();
        Self { trainer, w, b }
    }

    /// One update, with the samples of its number and the trainer's seeds.
    pub fn step(&mut self) -> Result<StepReport> {
        let (w, b) = (&self.w, &self.b);
        let x = curve(&[5, w.dim(0)?], self.trainer.updates() as f64);
        self.trainer.step(&x, |x, micro| {
            let factor = (micro.seed() % 5) as f64 + 1.;
            x.matmul(w)?
                .broadcast_add(b)?
                .affine(factor, 0.5)?
                .sqr()?
                .mean_all()
        })
    }

    /// Updates until there are as many, with checkpoints. Calls `f` after each.
    pub fn until(
        &mut self,
        updates: u64,
        checkpoints: &mut Checkpoints,
        mut f: impl FnMut(&mut Self, candle_headroom::checkpoint::Saving),
    ) -> Result<()> {
        while self.trainer.updates() < updates {
            let report = self.step()?;
            match checkpoints.after(&report, &self.trainer)? {
                std::ops::ControlFlow::Continue(saving) => f(self, saving),
                std::ops::ControlFlow::Break(_) => break,
            }
        }
        Ok(())
    }

    pub fn bits(&self) -> BTreeMap<String, Vec<u64>> {
        bits_of(&self.trainer)
    }
}

/// Everything that the next step depends on, bit by bit. What policies learned from the clock is left out.
pub fn bits_of(trainer: &impl Resumable) -> BTreeMap<String, Vec<u64>> {
    let mut all = BTreeMap::new();
    for parameter in trainer.model() {
        all.insert(format!("model.{}", parameter.name), bits(&parameter.var));
    }
    let state = trainer.state().unwrap();
    for (name, tensor) in &state.tensors {
        all.insert(name.clone(), bits(tensor));
    }
    for (name, text) in state.metadata {
        if !name.starts_with("micro_batches.") {
            all.insert(name, text.bytes().map(u64::from).collect());
        }
    }
    all
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    let values = values.to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

/// Number of bits in which two states differ; all of them where one has no such entry.
pub fn differing(a: &BTreeMap<String, Vec<u64>>, b: &BTreeMap<String, Vec<u64>>) -> u64 {
    let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let bits = |name: &&String| match (a.get(*name), b.get(*name)) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b);
            pairs.map(|(a, b)| u64::from((a ^ b).count_ones())).sum()
        }
        _ => 64,
    };
    names.iter().map(bits).sum()
}

/// The states after 0, 1, 2, … updates of a run that nothing interrupts.
pub fn uninterrupted(updates: usize) -> Vec<BTreeMap<String, Vec<u64>>> {
    let mut run = Run::new();
    let mut all = vec![run.bits()];
    for _ in 0..updates {
        run.step().unwrap();
        all.push(run.bits());
    }
    all
}

/// The step of the newest intact checkpoint.
pub fn latest(folder: &Path) -> Option<u64> {
    Checkpoint::latest(folder).unwrap().map(|it| it.step())
}

/// A folder in memory, where there is one: flushing takes no time, and hundreds of runs a few seconds.
pub fn memory_folder() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).unwrap()
}
