use std::ops::{Deref, DerefMut};

use super::adaptive::AdaptiveTrainer;
use super::builder::AdaptiveTrainerBuilder;
use super::input::{OwnError, StepInput};
use super::loss::Loss;
use super::report::StepReport;
use crate::batch::{Fixed, MicroBatch, at_least_one};
use crate::error::{Error, Result};
use crate::optim::Commit;

/// Applies one update for every `k` batches of a data loader, in a loop of your own.
///
/// By default batches are not cut, for sizes that are known to fit; a batch that does not fit is tried a second time if one of
/// its size has fitted before. With another [policy](AdaptiveTrainerBuilder::policy) they are cut as in an [`AdaptiveTrainer`].
/// The update's gradient is the weighted mean over all samples, even if batches differ in length.
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

impl<O: Commit> AccumulatingTrainer<O> {
    /// Trains the parameters of this optimizer, with one update for every `batches` batches.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AccumulatingTrainer, Sgd};
    ///
    /// let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut trainer = AccumulatingTrainer::builder(optimizer, 2).build()?;
    /// for x in [[1f32, 3.], [5., 7.]] {
    ///     let x = Tensor::new(&x, &Device::Cpu)?; // a batch of two samples
    ///     trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// }
    /// assert_eq!((trainer.updates(), w.to_vec1::<f32>()?), (1, vec![4.])); // the mean of all four
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(optimizer: O, batches: usize) -> AdaptiveTrainerBuilder<O, Self> {
        let builder = AdaptiveTrainerBuilder::new(optimizer, batches, |trainer, batches| {
            at_least_one("the number of batches in an update", batches)?;
            Ok(Self { trainer, batches })
        });
        builder.policy(Fixed::whole_batch())
    }

    /// Adds one batch. With the `k`-th batch, applies the update and returns its report.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AccumulatingTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let mut trainer = AccumulatingTrainer::builder(optimizer, 2).build()?;
    /// let mut step = || trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all());
    /// assert!(step()?.is_none());
    /// let report = step()?.expect("the second batch brings the update");
    /// assert_eq!(report.samples, 4);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`AdaptiveTrainer::step`]. This batch was not added and those before it are kept, so it may be given again in
    /// smaller batches, unless the error is [`WindowLost`](crate::error::WindowLost): all batches of this update were lost. With `k`
    /// above 1, an error of the update, such as [`UnreachedParameters`](crate::error::UnreachedParameters), is the reason of a
    /// `WindowLost`. So is, with a group, [`PeerFailed`](crate::error::GroupError::PeerFailed) if another rank failed in the update. After
    /// [`PeerLost`](crate::error::GroupError::PeerLost) this rank may or may not have applied it.
    ///
    /// In a [group](AdaptiveTrainerBuilder::group) every `k`-th call is an update on all ranks, so a batch that failed counts: go on with the
    /// next one, as the other ranks do. If the batches come from a [`Loader`](crate::data::Loader), that update is an error on all ranks, because
    /// this one lacks its part of a batch.
    pub fn step<I: StepInput, L: Into<Loss>>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<Option<StepReport>> {
        let done = self.step_with(batch, |slice, micro| Ok((f(slice, micro)?, ())));
        done.map(|(report, _)| report)
    }

    /// [`step`](Self::step) with a closure that returns a second output, and the outputs of this batch; see [`AdaptiveTrainer::step_with`].
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{AccumulatingTrainer, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut trainer = AccumulatingTrainer::builder(Sgd::builder(&varmap).build()?, 2).build()?;
    /// let batch = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
    /// let (report, sums) = trainer.step_with(&batch, |x, _| {
    ///     let y = model.forward(&x)?;
    ///     Ok((y.sqr()?.mean_all()?, y.sum_all()?.to_scalar::<f32>()?))
    /// })?;
    /// assert!(report.is_none()); // the second batch brings the update
    /// assert_eq!(sums.len(), 1); // one for each micro-batch
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn step_with<I: StepInput, L: Into<Loss>, T>(
        &mut self,
        batch: I,
        f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<(L, T)>,
    ) -> Result<(Option<StepReport>, Vec<T>)> {
        if self.trainer.given() + 1 < self.batches {
            return Ok((None, self.trainer.accumulate_with(batch, f)?));
        }
        let (report, outputs) = self.trainer.step_with(batch, f)?;
        Ok((Some(report), outputs))
    }

    /// [`step`](Self::step) with a closure that fails with your own error type; see [`AdaptiveTrainer::try_step`].
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AccumulatingTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// #[derive(Debug, thiserror::Error)]
    /// enum MyError {
    ///     #[error("text {0} is empty")]
    ///     Empty(usize),
    ///     #[error(transparent)]
    ///     Headroom(#[from] candle_headroom::Error),
    /// }
    ///
    /// let mut trainer = AccumulatingTrainer::builder(optimizer, 2).build()?;
    /// let failed = trainer.try_step(&x, |_, _| Err::<Tensor, _>(MyError::Empty(3)));
    /// assert!(matches!(failed, Err(MyError::Empty(3))));
    /// assert_eq!(trainer.pending(), 0); // the batch was not added
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// `f`'s own, and those of [`step`](Self::step) converted.
    pub fn try_step<I: StepInput, L: Into<Loss>, E>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> Result<L, E>,
    ) -> Result<Option<StepReport>, E>
    where
        E: std::error::Error + From<Error> + Send + Sync + 'static,
    {
        let done = self.step(batch, |slice, micro| {
            f(slice, micro).map_err(|error| Error::external(error).into())
        });
        done.map_err(|error| error.downcast().unwrap_or_else(E::from))
    }

    /// [`step`](Self::step) with a closure whose error type does not implement [`std::error::Error`]; see [`AdaptiveTrainer::try_step_as`].
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AccumulatingTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let mut trainer = AccumulatingTrainer::builder(optimizer, 2).build()?;
    /// let loss = |x: Tensor| -> anyhow::Result<Tensor> {
    ///     anyhow::ensure!(x.dim(0)? > 2, "too few samples");
    ///     Ok(x.broadcast_sub(&w)?.sqr()?.mean_all()?)
    /// };
    /// let failed = trainer.try_step_as(&x, |x, _| loss(x), |error| error.as_ref());
    /// assert_eq!(failed.unwrap_err().to_string(), "too few samples");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// `f`'s own, and those of [`step`](Self::step) converted.
    pub fn try_step_as<I: StepInput, L: Into<Loss>, E: From<Error>>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> Result<L, E>,
        as_error: impl Fn(&E) -> &(dyn std::error::Error + 'static),
    ) -> Result<Option<StepReport>, E> {
        let mut own = OwnError(None);
        let done = self.step(batch, |slice, micro| {
            f(slice, micro).map_err(|error| own.carry(error, &as_error))
        });
        done.map_err(|error| own.give_back(error))
    }

    /// Returns the optimizer and ends the training.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::{AccumulatingTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w]).learning_rate(0.5).build()?;
    /// let trainer = AccumulatingTrainer::builder(optimizer, 4).build()?;
    /// assert_eq!(trainer.into_optimizer().learning_rate(), 0.5);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn into_optimizer(self) -> O {
        self.trainer.into_optimizer()
    }
}

/// Everything but `step` with its variants and `into_optimizer` is that of the trainer, such as [`update`](AdaptiveTrainer::update) after the last batch of an epoch.
impl<O> Deref for AccumulatingTrainer<O> {
    type Target = AdaptiveTrainer<O>;

    fn deref(&self) -> &AdaptiveTrainer<O> {
        &self.trainer
    }
}

impl<O> DerefMut for AccumulatingTrainer<O> {
    fn deref_mut(&mut self) -> &mut AdaptiveTrainer<O> {
        &mut self.trainer
    }
}
