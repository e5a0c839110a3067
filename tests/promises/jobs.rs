//! Real models with their data and optimizers, and the points at which their steps can fail.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchPolicy, Recompute};
use candle_headroom::nn;
use candle_headroom::testing::Faults;
use candle_headroom::{AdaptiveTrainer, Error, Foreign, Loss, StepReport};
use candle_nn::{AdamW, VarBuilder, VarMap};

use crate::support::layered::{Layered, TIME, TOKENS};
use crate::support::transformer::{Config, Transformer};
use crate::support::{ConvNet, Halves, Mlp, Schedule, adamw, settle, snapshot};

pub const STEPS: usize = 2;

pub type State = Vec<Vec<f64>>;

/// A real model with its data and optimizer, created anew for each run.
pub trait Job {
    fn new() -> Self;
    fn trained(&self) -> Vec<Var>;
    /// Everything that a step may change.
    fn state(&self) -> State;
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }
    fn batch(&self) -> (Tensor, Tensor);
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss>;

    fn recompute(&self) -> Recompute {
        Recompute::Never
    }

    fn trainer(&self, policy: impl BatchPolicy + 'static) -> AdaptiveTrainer<Foreign<AdamW>> {
        AdaptiveTrainer::builder(adamw(&self.trained(), 0.01))
            .policy(policy)
            .recompute(self.recompute())
            .buffers(&self.buffers())
            .build()
            .unwrap()
    }

    fn step(&self, trainer: &mut AdaptiveTrainer<Foreign<AdamW>>) -> Result<StepReport, Error> {
        trainer.step(&self.batch(), |(x, y), _| self.loss(&x, &y))
    }
}

pub struct Perceptron(pub Mlp);

impl Job for Perceptron {
    fn new() -> Self {
        Self(Mlp::new(DType::F32))
    }
    fn trained(&self) -> Vec<Var> {
        self.0.vars.clone()
    }
    fn state(&self) -> State {
        snapshot(&self.0.vars)
    }
    fn batch(&self) -> (Tensor, Tensor) {
        Mlp::data(11, DType::F32)
    }
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        Ok(self.0.probed_loss(x, y)?.into())
    }
}

/// With dropout, whose masks a retry must draw again.
pub struct Dropping(Mlp);

impl Job for Dropping {
    fn new() -> Self {
        Self(Mlp::new(DType::F32))
    }
    fn trained(&self) -> Vec<Var> {
        self.0.vars.clone()
    }
    fn state(&self) -> State {
        snapshot(&self.0.vars)
    }
    fn batch(&self) -> (Tensor, Tensor) {
        Mlp::data(11, DType::F32)
    }
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        let x = nn::ops::dropout(x, 0.2)?;
        Ok(self.0.probed_loss(&nn::ops::dropout(&x, 0.1)?, y)?.into())
    }
}

/// Each kind of layer, in regions that are recomputed.
pub struct Recomputed(Layered);

impl Job for Recomputed {
    fn new() -> Self {
        Self(Layered::new(&Device::Cpu).unwrap())
    }
    fn trained(&self) -> Vec<Var> {
        self.0.trained()
    }
    fn state(&self) -> State {
        snapshot(&self.0.vars) // running statistics included
    }
    fn buffers(&self) -> Vec<Tensor> {
        let statistics = &self.0.statistics;
        vec![
            statistics.running_mean().clone(),
            statistics.running_var().clone(),
        ]
    }
    fn batch(&self) -> (Tensor, Tensor) {
        let tokens = |shift: usize| {
            let tokens = (0..11 * TIME).map(|i| ((i * 7 + shift) % TOKENS) as u32);
            let tokens = Tensor::from_iter(tokens, &Device::Cpu).unwrap();
            tokens.reshape((11, TIME)).unwrap()
        };
        (tokens(0), tokens(7))
    }
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        Ok(self.0.loss(x, y)?.into())
    }
    fn recompute(&self) -> Recompute {
        Recompute::Always
    }
}

impl Job for ConvNet {
    fn new() -> Self {
        Self::new()
    }
    fn trained(&self) -> Vec<Var> {
        self.trained()
    }
    fn state(&self) -> State {
        snapshot(&self.vars) // running statistics included
    }
    fn buffers(&self) -> Vec<Tensor> {
        vec![
            self.norm.running_mean().clone(),
            self.norm.running_var().clone(),
        ]
    }
    fn batch(&self) -> (Tensor, Tensor) {
        ConvNet::data(11)
    }
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        Ok(candle_headroom::testing::probe(&self.loss(x, y)?)?.into())
    }
}

pub struct Language {
    vars: Vec<Var>,
    model: Transformer,
}

impl Job for Language {
    fn new() -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let config = Config {
            context: 6,
            width: 8,
            heads: 2,
            layers: 1,
        };
        let model = Transformer::new(config, vb).unwrap();
        Self {
            vars: settle(&varmap),
            model,
        }
    }
    fn trained(&self) -> Vec<Var> {
        self.vars.clone()
    }
    fn state(&self) -> State {
        snapshot(&self.vars)
    }
    fn batch(&self) -> (Tensor, Tensor) {
        let text = |shift: u32| {
            let bytes = (0..11 * 6).map(|i| (i * 31 + shift) % 256);
            Tensor::from_iter(bytes, &Device::Cpu)
                .unwrap()
                .reshape((11, 6))
                .unwrap()
        };
        (text(0), text(31))
    }
    /// Weighted by tokens: bytes above 127 do not count.
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Loss> {
        let scores = self.model.forward(x)?.flatten_to(1)?;
        let y = y.flatten_all()?;
        let each = candle_nn::ops::log_softmax(&scores, 1)?.gather(&y.unsqueeze(1)?, 1)?;
        let counts = y.lt(128u32)?.to_dtype(DType::F32)?;
        let sum = (each.squeeze(1)?.neg()? * &counts)?.sum_all()?;
        let weight = f64::from(counts.sum_all()?.to_scalar::<f32>()?);
        Ok(Loss::sum(sum, weight))
    }
}

/// The states after each step of an uninterrupted run with these splits.
pub fn uninterrupted<J: Job>(splits: &[Vec<usize>]) -> Vec<State> {
    let job = J::new();
    let mut trainer = job.trainer(Schedule::new(&splits.concat()));
    let mut states = Vec::new();
    for split in splits {
        let report = job.step(&mut trainer).unwrap();
        assert_eq!(&report.sizes, split);
        states.push(job.state());
    }
    states
}

pub fn whole_splits() -> Vec<Vec<usize>> {
    vec![vec![4, 4, 3]; STEPS]
}

/// Number of points that an uninterrupted run passes.
pub fn points<J: Job>() -> usize {
    let job = J::new();
    let mut trainer = job.trainer(Halves(4));
    let armed = Faults::at(usize::MAX).arm();
    for _ in 0..STEPS {
        job.step(&mut trainer).unwrap();
    }
    armed.points()
}
