//! A model in training, alone or with other ranks.

use candle_core::Tensor;
use candle_headroom::batch::{Batch, Fixed};
use candle_headroom::optim::{FusedBuilder, ParamsAdamW};
use candle_headroom::train::AdaptiveTrainerBuilder;
use candle_headroom::{AdamW, AdaptiveTrainer, StepReport};

use crate::support::Job;
use crate::support::transformer::Config;

pub type Builder = AdaptiveTrainerBuilder<AdamW>;
pub type OptimizerBuilder = FusedBuilder<ParamsAdamW>;

pub struct Training {
    pub job: Job,
    pub trainer: AdaptiveTrainer<AdamW>,
}

/// The model of `train_text`: 137,216 parameters.
pub const SMALL: Config = Config {
    context: 64,
    width: 64,
    heads: 4,
    layers: 2,
};

impl Training {
    /// A batch of `texts` texts, which is not cut, and a trainer with these options.
    pub fn new(
        config: Config,
        texts: usize,
        options: impl FnOnce(Builder) -> Builder,
    ) -> candle_headroom::Result<Self> {
        Self::with(config, texts, |adam| adam, options)
    }

    /// The same with options of the optimizer.
    pub fn with(
        config: Config,
        texts: usize,
        optimizer: impl FnOnce(OptimizerBuilder) -> OptimizerBuilder,
        options: impl FnOnce(Builder) -> Builder,
    ) -> candle_headroom::Result<Self> {
        let job = Job::new(config, texts)?;
        // The values hardly move, so that the last step costs what the first one does.
        let adam = AdamW::builder(&job.varmap).learning_rate(1e-7);
        let builder = AdaptiveTrainer::builder(optimizer(adam).build()?).policy(Fixed::new(texts)?);
        let trainer = options(builder).build()?;
        Ok(Self { job, trainer })
    }

    /// A step with the whole batch.
    pub fn step(&mut self) -> StepReport {
        let texts = (self.job.x.clone(), self.job.y.clone());
        self.step_with(&texts, 1)
    }

    /// A step with these texts, on a rank that takes `slowness` times as long as it needs for the two passes.
    pub fn step_with<'a, B>(&mut self, texts: &'a B, slowness: usize) -> StepReport
    where
        B: Batch<Slice<'a> = (Tensor, Tensor)>,
    {
        let model = &self.job.model;
        let step = self.trainer.step(texts, |(x, y), _| {
            for _ in 1..slowness {
                model.loss(&x, &y)?.backward()?;
            }
            model.loss(&x, &y)
        });
        step.expect("a step")
    }

    pub fn parameters(&self) -> usize {
        self.job.vars.iter().map(|var| var.elem_count()).sum()
    }
}
