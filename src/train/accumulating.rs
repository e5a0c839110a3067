use candle_core::Tensor;

use super::adaptive::AdaptiveTrainer;
use super::builder::AdaptiveTrainerBuilder;
use super::loss::Loss;
use super::report::StepReport;
use crate::batch::{Batch, Fixed, MicroBatch, Observer};
use crate::error::{Error, PolicyError, Result};
use crate::memory::DeviceMemory;
use crate::optim::{Commit, Parameter};

/// Applies one update for every `k` batches of a data loader, in a loop of your own.
///
/// Batches are not cut: use it if a size that fits is known. [`AdaptiveTrainer`] cuts batches itself. A batch that does not fit
/// is tried a second time if one of its size has fitted before. The update's gradient is the weighted mean over all samples,
/// even if batches differ in length.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AccumulatingTrainer, AdamW};
/// use candle_nn::{linear, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::builder(&varmap).learning_rate(1e-2).build()?;
/// let mut trainer = AccumulatingTrainer::builder(optimizer, 4).build()?;
///
/// let mut updates = 0;
/// for _ in 0..10 {
///     let x = Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?;
///     let report = trainer.step(&x, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
///     updates += usize::from(report.is_some());
/// }
/// let rest = trainer.update()?.expect("two batches are left");
/// assert_eq!((updates, rest.samples), (2, 16));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct AccumulatingTrainer<O> {
    trainer: AdaptiveTrainer<O>,
    batches: usize,
}

/// Builds an [`AccumulatingTrainer`]; made by [`AccumulatingTrainer::builder`].
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct AccumulatingTrainerBuilder<O> {
    trainer: AdaptiveTrainerBuilder<O>,
    batches: usize,
}

impl<O: Commit> AccumulatingTrainerBuilder<O> {
    /// As [`AdaptiveTrainerBuilder::memory`].
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.trainer = self.trainer.memory(memory);
        self
    }

    /// As [`AdaptiveTrainerBuilder::buffers`].
    pub fn buffers<'a>(mut self, buffers: impl IntoIterator<Item = &'a Tensor>) -> Self {
        self.trainer = self.trainer.buffers(buffers);
        self
    }

    /// As [`AdaptiveTrainerBuilder::seed`].
    pub fn seed(mut self, seed: u64) -> Self {
        self.trainer = self.trainer.seed(seed);
        self
    }

    /// As [`AdaptiveTrainerBuilder::observer`].
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.trainer = self.trainer.observer(observer);
        self
    }

    /// Builds the trainer.
    ///
    /// # Errors
    /// [`PolicyError::Zero`] for 0 batches, and those of [`AdaptiveTrainerBuilder::build`].
    pub fn build(self) -> Result<AccumulatingTrainer<O>> {
        if self.batches == 0 {
            let what = "the number of batches in an update";
            return Err(PolicyError::Zero { what }.into());
        }
        Ok(AccumulatingTrainer {
            trainer: self.trainer.policy(Fixed::new(usize::MAX)?).build()?,
            batches: self.batches,
        })
    }
}

impl<O: Commit> AccumulatingTrainer<O> {
    /// Trains the parameters of this optimizer, with one update for every `batches` batches.
    pub fn builder(optimizer: O, batches: usize) -> AccumulatingTrainerBuilder<O> {
        AccumulatingTrainerBuilder {
            trainer: AdaptiveTrainer::builder(optimizer),
            batches,
        }
    }

    /// Adds one batch. With the `k`-th batch, applies the update and returns its report.
    ///
    /// # Errors
    /// Those of [`AdaptiveTrainer::step`]. This batch was not added and those before it are kept, so it may be given again in
    /// smaller batches, unless the error is [`WindowLost`](crate::error::WindowLost): adding it or the update failed, and all
    /// batches of this update were lost.
    pub fn step<'b, B, L>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<Option<StepReport>>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        if self.trainer.pending() + 1 < self.batches {
            self.trainer.accumulate(batch, f)?;
            return Ok(None);
        }
        self.trainer.step(batch, f).map(Some)
    }

    /// [`step`](Self::step) with a closure that fails with your own error type; see [`AdaptiveTrainer::try_step`].
    ///
    /// # Errors
    /// `f`'s own, and those of [`step`](Self::step) converted.
    pub fn try_step<'b, B, L, E>(
        &mut self,
        batch: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> Result<L, E>,
    ) -> Result<Option<StepReport>, E>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
        E: std::error::Error + From<Error> + Send + Sync + 'static,
    {
        self.step(batch, |slice, micro| {
            f(slice, micro).map_err(|error| Error::external(error).into())
        })
        .map_err(|error| error.downcast().unwrap_or_else(E::from))
    }

    /// Applies an update with the batches that are left, if any: after the last batch of an epoch.
    ///
    /// # Errors
    /// Those of [`AdaptiveTrainer::update`].
    pub fn update(&mut self) -> Result<Option<StepReport>> {
        self.trainer.update()
    }

    /// Returns the number of samples added since the last update.
    pub fn samples(&self) -> usize {
        self.trainer.samples()
    }

    /// Returns the number of updates so far, including those skipped because a gradient was not finite.
    pub fn updates(&self) -> u64 {
        self.trainer.updates()
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        self.trainer.optimizer()
    }

    /// Returns the optimizer, for example to set its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.trainer.optimizer_mut()
    }

    /// Continues with another optimizer; see [`AdaptiveTrainer::replace_optimizer`].
    pub fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.trainer.replace_optimizer(optimizer)
    }

    /// Returns the optimizer and ends the training.
    pub fn into_optimizer(self) -> O {
        self.trainer.into_optimizer()
    }

    /// Returns the parameters that have never received a gradient; see
    /// [`GradientAccumulator::unreached`](super::GradientAccumulator::unreached).
    pub fn unreached(&self) -> Vec<Parameter> {
        self.trainer.unreached()
    }
}
