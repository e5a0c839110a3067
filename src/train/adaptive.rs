//! [`AdaptiveTrainer`]: its methods, which decide nothing by themselves.
//!
//! A step looks at its input (`input`), the engine of `batch` cuts it and retries what does not fit, `core` computes each micro-batch, and `update`
//! applies the sum. Evaluation takes an engine of its own, because without gradients more samples fit.

use super::core::Core;
use super::estimate::Estimate;
use super::input::{Given, OwnError, StepInput, with_given};
use super::loss::{Loss, StepLoss};
use super::ranks::{Ranks, Turn};
use super::report::{Exchange, StepReport};
use crate::batch::{Attempt, Batch, CutCheck, Engine, MicroBatch, Plan, Processed};
use crate::error::{Error, Holding, Result};
use crate::optim::{Commit, Parameter};

/// Trains with the gradient of the whole batch in micro-batches that fit, in a loop of your own.
///
/// [`step`](Self::step) cuts the batch, calls your closure with each micro-batch, accumulates the gradients, and applies one
/// update. If memory runs out, only the current micro-batch is dropped and computed again in smaller ones. Each sample counts
/// exactly once. The update happens exactly once or, with an error, not at all.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdamW, AdaptiveTrainer};
/// use candle_nn::{linear, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::builder(&varmap).learning_rate(0.05).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
///
/// let batch = Tensor::randn(0f32, 1., (64, 4), &Device::Cpu)?; // [samples, features]
/// let report = trainer.step(&batch, |x, _| {
///     if x.dim(0)? > 24 {
///         candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY") // as on a device with room for 24 samples
///     }
///     model.forward(&x)?.sqr()?.mean_all()
/// })?;
/// assert_eq!((report.samples, report.sizes.len()), (64, 4));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Several batches in one update
/// [`accumulate`](Self::accumulate) adds a batch without an update, and [`update`](Self::update) applies it. `step` is both.
///
/// # The optimizer
/// The trainer trains the optimizer's parameters. This crate's optimizers ([`AdamW`](crate::AdamW) and others) update all
/// parameters or none and allocate nothing, so an update cannot run out of memory. Any other [`candle_nn::Optimizer`] is wrapped
/// in [`Foreign`](crate::Foreign). Those update Var by Var and cannot undo it: if one fails half-way, the step returns
/// [`UpdateInterrupted`](crate::error::UpdateInterrupted), and so does every further step until
/// [`replace_optimizer`](Self::replace_optimizer), so that no parameter is updated twice. [`state`](Self::state) does so too, so that no
/// checkpoint holds half an update.
#[derive(Debug)]
pub struct AdaptiveTrainer<O> {
    pub(super) core: Core<O>,
    pub(super) engine: Engine,
    /// Its policy has a model of its own: without gradients, samples need less memory.
    pub(super) evaluation: Engine,
}

impl<O: Commit> AdaptiveTrainer<O> {
    /// Applies one update with the gradient of the whole batch.
    ///
    /// The batch is given by reference, or as the `Result` of a batch that a loader yields; see [`StepInput`].
    ///
    /// `f` receives a micro-batch and its [`MicroBatch`], and returns the loss: a tensor with one element, the mean over the
    /// samples that it received, or a [`Loss`]. It is called again for a micro-batch that did not fit, and must not keep what
    /// it receives. To return an error of your own, wrap it with [`Error::external`], or call [`try_step`](Self::try_step). For more results
    /// than the loss there is [`step_with`](Self::step_with).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let batch = Tensor::new(&[1f32, 3.], &Device::Cpu)?; // two samples
    /// let report = trainer.step(&batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// assert_eq!((report.step, report.samples), (1, 2));
    /// assert_eq!(report.loss()?, 5.); // (1 + 9) / 2, before the update
    /// assert_eq!(w.to_vec1::<f32>()?, [2.]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// All but the last leave parameters, optimizer, buffers and counters as they were:
    /// - the error in place of a batch;
    /// - a batch without samples, or whose parts disagree ([`is_batch`](Error::is_batch)), a loss that cannot be used
    ///   ([`is_loss`](Error::is_loss));
    /// - [`UnreachedParameters`](crate::error::UnreachedParameters) in the first update if a parameter received no gradient;
    ///   see [`allow_unreached`](super::AdaptiveTrainerBuilder::allow_unreached);
    /// - [`ResourceExhausted`](crate::ResourceExhausted) if a single sample does not fit, or the policy stops;
    /// - [`DeviceFault`](crate::DeviceFault), which is never retried;
    /// - [`DataError::Position`](crate::error::DataError::Position) if state was loaded and the batch's loader does not continue where the
    ///   saved run stopped, or that run had no loader of its name;
    /// - any other error of candle or of `f`, at once and unchanged;
    /// - [`WindowLost`](crate::error::WindowLost) if batches that were [accumulated](Self::accumulate) before were lost with this one;
    /// - [`UpdateInterrupted`](crate::error::UpdateInterrupted) if the optimizer failed half-way.
    ///
    /// With a group, also [errors of it](Error::is_group):
    /// - [`PeerFailed`](crate::error::GroupError::PeerFailed) if another rank failed, and others if ranks make other updates or other calls, if
    ///   their batches are not parts of one batch of equal [`Loader`](crate::data::Loader)s, or if their parameters differ: no rank has updated;
    /// - [`PeerLost`](crate::error::GroupError::PeerLost) if a rank is lost: this rank may or may not have applied the update. Continue from a
    ///   checkpoint; later calls fail with `Broken`.
    pub fn step<I: StepInput, L: Into<Loss>>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<StepReport> {
        let done = self.step_with(batch, |slice, micro| Ok((f(slice, micro)?, ())));
        done.map(|(report, _)| report)
    }

    /// [`step`](Self::step) with a closure that returns a second output beside the loss, such as logits or the number of right answers. Also
    /// returns the outputs of the micro-batches of [`StepReport::sizes`], in their order: each sample is in one of them, and none is of a
    /// failed attempt or of a [check](MicroBatch::is_check).
    ///
    /// All outputs are held until the step ends, and what they hold of the device counts as used memory. Detach tensors, because one that is
    /// attached holds the activations of its micro-batch.
    ///
    /// ```
    /// use candle_core::{D, DType, Device, Tensor};
    /// use candle_headroom::batch::Fixed;
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    /// use candle_nn::{Module, VarBuilder, VarMap, linear, loss};
    ///
    /// let varmap = VarMap::new();
    /// let model = linear(4, 3, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let optimizer = Sgd::builder(&varmap).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(4)?).build()?;
    ///
    /// let x = Tensor::randn(0f32, 1., (10, 4), &Device::Cpu)?; // [samples, features]
    /// let y = Tensor::zeros(10, DType::U32, &Device::Cpu)?;
    /// let (report, right) = trainer.step_with(&(x, y), |(x, y), _| {
    ///     let logits = model.forward(&x)?; // [n, classes]
    ///     let right = logits.argmax(D::Minus1)?.eq(&y)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?;
    ///     Ok((loss::cross_entropy(&logits, &y)?, right))
    /// })?;
    /// assert_eq!((report.sizes, right.len()), (vec![4, 4, 2], 3));
    /// println!("{} of 10 are right", right.iter().sum::<u32>());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`step`](Self::step). There are no outputs then.
    pub fn step_with<I: StepInput, L: Into<Loss>, T>(
        &mut self,
        batch: I,
        f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<(L, T)>,
    ) -> Result<(StepReport, Vec<T>)> {
        // Before the batch is looked at, so that the other ranks also hear of a panic in there.
        let turn = self.core.ranks.as_ref().map(Ranks::turn);
        with_given(batch, f, |given| self.step_given(turn, given))
    }

    fn step_given(&mut self, turn: Option<Turn>, given: Result<Given<'_>>) -> Result<StepReport> {
        self.core.given = 0;
        let done = given.and_then(|given| {
            let origins = given.origins.clone();
            let done = self.core.run(&mut self.engine, given, Core::update)?;
            Ok((done, origins))
        });
        // The other ranks have dropped what they had accumulated.
        let done = done.map_err(|error| self.core.with_window(error));
        let ((took, mut report), origins) = told(turn, done)?;
        report.extend(took);
        if let Some(ranks) = &mut self.core.ranks {
            ranks.divide(&origins, &mut self.core.positions);
        }
        Ok(report)
    }

    /// [`step`](Self::step) with a closure that fails with your own error type, which is returned as it is. An exhaustion within
    /// it is found through its [`source`](std::error::Error::source) and retried. An exhaustion or device fault that ends the step
    /// is completed and comes back converted; [`Error::downcast_ref`] finds yours in it.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// #[derive(Debug, thiserror::Error)]
    /// enum MyError {
    ///     #[error("text {0} is empty")]
    ///     Empty(usize),
    ///     #[error(transparent)]
    ///     Headroom(#[from] candle_headroom::Error),
    /// }
    ///
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let failed = trainer.try_step(&x, |_, _| Err::<Tensor, _>(MyError::Empty(3)));
    /// assert!(matches!(failed, Err(MyError::Empty(3))));
    /// assert_eq!(trainer.updates(), 0);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// `f`'s own, and those of [`step`](Self::step) converted.
    pub fn try_step<I: StepInput, L: Into<Loss>, E>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> Result<L, E>,
    ) -> Result<StepReport, E>
    where
        E: std::error::Error + From<Error> + Send + Sync + 'static,
    {
        let done = self.step(batch, |slice, micro| {
            f(slice, micro).map_err(|error| Error::external(error).into())
        });
        done.map_err(|error| error.downcast().unwrap_or_else(E::from))
    }

    /// [`try_step`](Self::try_step) for an error type that does not implement [`std::error::Error`], such as `anyhow::Error`: `as_error` shows
    /// what is in it, so that an exhaustion is found.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    /// use candle_nn::{Module, VarBuilder, VarMap, linear};
    ///
    /// #[derive(Debug, PartialEq, thiserror::Error)]
    /// #[error("text {0} is empty")]
    /// struct Empty(usize);
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let varmap = VarMap::new();
    ///     let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    ///     let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
    ///     let x = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?;
    ///
    ///     let loss = |x: Tensor| -> anyhow::Result<Tensor> {
    ///         anyhow::ensure!(x.dim(0)? < 8, Empty(3));
    ///         Ok(model.forward(&x)?.sqr()?.mean_all()?)
    ///     };
    ///     let error = trainer.try_step_as(&x, |x, _| loss(x), |error| error.as_ref()).unwrap_err();
    ///     assert_eq!(error.downcast_ref(), Some(&Empty(3)));
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// `f`'s own, unless it holds an exhaustion or a device fault, and those of [`step`](Self::step) converted.
    pub fn try_step_as<I: StepInput, L: Into<Loss>, E: From<Error>>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> Result<L, E>,
        as_error: impl Fn(&E) -> &(dyn std::error::Error + 'static),
    ) -> Result<StepReport, E> {
        let mut own = OwnError(None);
        let done = self.step(batch, |slice, micro| {
            f(slice, micro).map_err(|error| own.carry(error, &as_error))
        });
        done.map_err(|error| own.give_back(error))
    }

    /// Accumulates the gradients of a batch for the next [`update`](Self::update), which has the mean over the samples of all batches: large
    /// batches for the optimizer from small ones of the loader. The batch is cut and retried as in [`step`](Self::step).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
    /// let batch = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
    /// for _ in 0..3 {
    ///     trainer.accumulate(&batch, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
    /// }
    /// assert_eq!((trainer.pending(), trainer.samples()), (3, 24));
    /// let report = trainer.update()?.expect("three batches");
    /// assert_eq!((report.samples, trainer.updates()), (24, 1));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`step`](Self::step). The batches before are kept if the error came before anything of this batch was added.
    /// Otherwise they are lost, and the error is [`WindowLost`](crate::error::WindowLost) with their number of samples. What a
    /// failed batch took counts in the report of the update if the batches before are kept. The other ranks of a group are not asked, so there is
    /// no [`GroupError`](crate::error::GroupError).
    pub fn accumulate<I: StepInput, L: Into<Loss>>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<()> {
        let done = self.accumulate_with(batch, |slice, micro| Ok((f(slice, micro)?, ())));
        done.map(|_| ())
    }

    /// [`accumulate`](Self::accumulate) with a closure that returns a second output, as [`step_with`](Self::step_with) has it.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// # let batch = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let samples = trainer.accumulate_with(&batch, |x, _| {
    ///     Ok((x.broadcast_sub(&w)?.sqr()?.mean_all()?, x.dim(0)?))
    /// })?;
    /// assert_eq!((samples, trainer.pending()), (vec![2], 1));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`accumulate`](Self::accumulate).
    pub fn accumulate_with<I: StepInput, L: Into<Loss>, T>(
        &mut self,
        batch: I,
        f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<(L, T)>,
    ) -> Result<Vec<T>> {
        self.core.given += 1;
        let done = with_given(batch, f, |given| {
            let (took, ()) = (self.core).run(&mut self.engine, given?, |_, _, _| Ok(()))?;
            self.core.accumulator.window.extend(took);
            Ok(())
        });
        done.map(|((), outputs)| outputs)
    }

    /// Applies one update with the batches that were accumulated. Returns `None` if there are none.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// # let batch = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// trainer.accumulate(&batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// let report = trainer.update()?.expect("one batch");
    /// assert_eq!(report.samples, 2);
    /// assert!(trainer.update()?.is_none()); // nothing is left
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`GradientAccumulator::update`](super::GradientAccumulator::update): unless it is
    /// [`UpdateInterrupted`](crate::error::UpdateInterrupted), the batches are kept and `update` can be called again.
    /// [`WindowLost`](crate::error::WindowLost) if a panic in a step lost them. With a group, also the
    /// [`GroupError`](crate::error::GroupError)s of [`step`](Self::step).
    pub fn update(&mut self) -> Result<Option<StepReport>> {
        let turn = self.core.ranks.as_ref().map(Ranks::turn);
        self.core.given = 0;
        let done = self.update_together();
        told(turn, done)
    }

    fn update_together(&mut self) -> Result<Option<StepReport>> {
        if self.samples() == 0 {
            self.core.report_lost()?;
            self.core.accumulator.refuse_if_interrupted()?;
            if self.core.ranks.is_none() {
                return Ok(None);
            }
        }
        let (core, engine) = (&mut self.core, &mut self.engine);
        let last = core.accumulator.batches + core.accumulator.window.batches as u64;
        let done = engine.batch(last.saturating_sub(1), 0, None, |engine, took| {
            core.update(engine, took)
        });
        let (took, mut report) = self.core.keep(done)?;
        report.extend(took);
        let samples = report
            .exchange
            .as_ref()
            .map_or(report.samples, Exchange::samples);
        Ok(Some(report).filter(|_| samples > 0))
    }

    /// Checks whether the loss of `f` depends on how a batch is cut into micro-batches. An update should be that of the whole batch, however
    /// memory forces it to be cut.
    ///
    /// `f` runs with the batch's first samples together and with the same samples in two parts, and the gradients are compared: the
    /// whole's has to be that of the parts, combined by their weights. It begins with 7 samples and doubles them as long as they fit in
    /// memory, up to the whole batch. Nothing of the trainer changes, neither parameters, accumulated gradients,
    /// [buffers](super::AdaptiveTrainerBuilder::buffers) nor counters. [`MicroBatch::is_check`] tells `f` that it is called for a check.
    ///
    /// This crate's dropout is off meanwhile, since masks differ between a micro-batch and the whole. Other random numbers make the loss
    /// differ from call to call, also those that come from [`MicroBatch::seed`]: then nothing can be checked, which
    /// [`CutFinding::Random`](crate::batch::CutFinding::Random) says.
    ///
    /// A trainer checks a few samples by itself when it first cuts a batch, unless
    /// [`unchecked_cuts`](super::AdaptiveTrainerBuilder::unchecked_cuts) was given. Call this for a check of more samples, or before a long run.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::error::{CutCause, Error};
    /// use candle_headroom::{AdamW, AdaptiveTrainer, Loss};
    /// use candle_nn::{Module, VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let optimizer = AdamW::builder(&varmap).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    ///
    /// let x = Tensor::randn(0f32, 1., (6, 4), &Device::Cpu)?;
    /// let keep = Tensor::new(&[1f32, 0., 1., 1., 1., 0.], &Device::Cpu)?; // 0 for padding
    /// let batch = (x, keep);
    /// let mean = |x: &Tensor, keep: &Tensor| -> candle_core::Result<(Tensor, f64)> {
    ///     let each = model.forward(x)?.sqr()?.squeeze(1)?;
    ///     let count = f64::from(keep.sum_all()?.to_scalar::<f32>()?);
    ///     Ok((((each * keep)?.sum_all()? / count)?, count))
    /// };
    ///
    /// // A mean over what is kept counts as a mean over samples.
    /// let wrong = trainer.check_cut(&batch, |(x, keep), _| Ok(mean(&x, &keep)?.0));
    /// let Err(Error::DependsOnCut(error)) = wrong else { panic!("{wrong:?}") };
    /// assert_eq!(error.cause, CutCause::Weights);
    /// // With its weight it does not depend on the cut.
    /// let right = trainer.check_cut(&batch, |(x, keep), _| {
    ///     let (mean, count) = mean(&x, &keep)?;
    ///     Ok(Loss::weighted_mean(mean, count))
    /// })?;
    /// println!("{right}");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`DependsOnCut`](crate::error::DependsOnCut) names the likely cause and the remedy;
    /// - those of a batch or a loss that cannot be used, as in [`step`](Self::step), and any other error of candle or of `f`;
    /// - [`ResourceExhausted`](crate::ResourceExhausted) if not even two or three samples fit.
    pub fn check_cut<I: StepInput, L: Into<Loss>>(
        &mut self,
        batch: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<CutCheck> {
        let checked = with_given(
            batch,
            |slice, micro| Ok((f(slice, micro)?, ())),
            |given| self.core.check_cut(&self.engine, given?),
        );
        checked.map(|(check, _)| check)
    }

    /// Runs `f` over all samples of `data` in order, in chunks that fit without gradients, and returns a result for each chunk. `data` is given
    /// as the batch of a [`step`](Self::step); [`evaluate_loss`](Self::evaluate_loss) does so with losses.
    ///
    /// A chunk that does not fit is computed again in smaller ones and counts once. With an error there are no results, so that
    /// no metric is computed from a part of the data. [Buffers](super::AdaptiveTrainerBuilder::buffers) are restored.
    /// Weight a chunk's mean by its number of samples: chunks differ in size.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
    /// let data = Tensor::ones((100, 4), DType::F32, &Device::Cpu)?; // [samples, features]
    /// let chunks = trainer.evaluate(&data, |x, _| {
    ///     let above = model.forward(&x)?.gt(0f32)?.to_dtype(DType::U32)?;
    ///     above.sum_all()?.to_scalar::<u32>()
    /// })?;
    /// let above: u32 = chunks.results.iter().sum();
    /// assert_eq!(chunks.sizes.iter().sum::<usize>(), 100);
    /// println!("{above} of 100 outputs are positive");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`process_batches`](crate::process_batches).
    pub fn evaluate<I: StepInput, T>(
        &mut self,
        data: I,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>> {
        let data = data.into_batch()?;
        self.core.follow_buffers()?;
        let _traces = self.core.at_micro_batch.guard()?;
        let chunk = |attempt: &Attempt<'_>| attempt.forward(|range| I::slice(&data, range), &mut f);
        let (extent, held) = (data.extent()?, || self.core.held());
        self.evaluation
            .process(extent, &data.origins(), chunk, held)
    }

    /// Returns the mean loss over batches, without gradients and without an update: the loss of a validation set, in the weights of training.
    /// NaN without samples, or if all losses have weight 0.
    ///
    /// Batches come as in [`step`](Self::step), by reference or as `Result`s, and are cut as in [`evaluate`](Self::evaluate). For one batch
    /// write `[&batch]`. The device is waited for once, at the end. In a [group](super::AdaptiveTrainerBuilder::group) the ranks are not asked:
    /// it is the mean over the batches of this rank.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    /// use candle_nn::{Module, VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
    ///
    /// let validation = [8, 8, 3].map(|n| Tensor::ones((n, 4), DType::F32, &Device::Cpu));
    /// let loss = trainer.evaluate_loss(validation, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
    /// println!("validation loss {loss:.4}");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error in place of a batch, those of [`evaluate`](Self::evaluate), and of a loss that cannot be used
    /// ([`is_loss`](crate::Error::is_loss)).
    pub fn evaluate_loss<I: StepInput, L: Into<Loss>>(
        &mut self,
        batches: impl IntoIterator<Item = I>,
        mut f: impl FnMut(I::Slice<'_>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<f64> {
        let mut mean = StepLoss::default();
        for batch in batches {
            let evaluated = self.evaluate(batch, |slice, micro| {
                let loss: Loss = f(slice, micro)?.into();
                Ok(loss.weighted(micro.samples.len())?.alone()?)
            })?;
            let losses = evaluated.results.iter();
            losses.for_each(|loss| mean.push(loss));
        }
        Ok(mean.read()?)
    }

    /// Returns the micro-batch size that a batch of `samples` would begin with.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::batch::Fixed;
    ///
    /// let trainer = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(16)?).build()?;
    /// assert_eq!((trainer.micro_batch(100), trainer.micro_batch(5)), (16, 5));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn micro_batch(&self, samples: usize) -> usize {
        self.engine.policy.size(samples)
    }

    /// Returns what the policy has learned and why it uses its size; `None` for a policy without a plan.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
    /// let batch = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?;
    /// trainer.step(&batch, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
    /// if let Some(plan) = trainer.plan() {
    ///     println!("{plan}");
    /// }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn plan(&self) -> Option<Plan> {
        self.engine.plan()
    }

    /// Returns what training takes of memory, in bytes: what is held, and what micro-batches take, as far as it was measured. Print it after
    /// the first step: `println!("{}", trainer.estimate())` is a table with the peak at 1, 8 and 64 samples.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::{AdamW, AdaptiveTrainer};
    ///
    /// let w = Var::zeros(1000, DType::F32, &Device::Cpu)?;
    /// let trainer = AdaptiveTrainer::builder(AdamW::builder(vec![w]).build()?).build()?;
    /// let estimate = trainer.estimate();
    /// // The parameter, its gradient and two moments, 4 bytes for each element.
    /// assert_eq!((estimate.trained, estimate.held_bytes()), (1000, 16_000));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn estimate(&self) -> Estimate {
        let mut estimate = Estimate::new(self.optimizer());
        let saved = self.core.saved_bytes();
        if saved > 0 {
            let saved = Holding::new("saved values of buffers", saved);
            estimate.held.push(saved);
        }
        estimate.measured = self.engine.measured;
        if let Some(plan) = self.plan() {
            (estimate.base, estimate.each) = (plan.base, plan.each);
        }
        estimate
    }

    /// Returns the policy's plan for evaluation, as [`plan`](Self::plan) does for training.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::Predictive;
    ///
    /// let policy = Predictive::builder().at_most(64).build()?;
    /// let trainer = AdaptiveTrainer::builder(optimizer).evaluation_policy(policy).build()?;
    /// let plan = trainer.evaluation_plan().expect("a policy that predicts");
    /// assert_eq!(plan.using, Some(64));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn evaluation_plan(&self) -> Option<Plan> {
        self.evaluation.plan()
    }

    /// Returns the number of updates so far, including those skipped because a gradient was not finite.
    pub fn updates(&self) -> u64 {
        self.core.accumulator.updates
    }

    /// Returns the number of batches accumulated since the last update.
    pub fn pending(&self) -> usize {
        self.core.accumulator.window.batches
    }

    /// Number of batches given for the next update. With other ranks also those that failed: the others have theirs.
    pub(super) fn given(&self) -> usize {
        match self.core.ranks {
            Some(_) => self.core.given,
            None => self.pending(),
        }
    }

    /// Returns the number of samples accumulated since the last update.
    pub fn samples(&self) -> usize {
        self.core.accumulator.samples()
    }

    /// Returns the optimizer.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// assert_eq!(trainer.optimizer().learning_rate(), 0.5);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer(&self) -> &O {
        self.core.accumulator.optimizer()
    }

    /// Returns the optimizer, for example to set its learning rate, which counts from the next update on.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?).build()?;
    /// let optimizer = trainer.optimizer_mut();
    /// optimizer.set_learning_rate(optimizer.learning_rate() / 2.);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.core.accumulator.optimizer_mut()
    }

    /// Continues with another optimizer and returns the previous one. Accumulated batches are dropped, and buffers are restored to what
    /// they were before these. After an interrupted
    /// update, restore the parameters first; [`load_state`](Self::load_state) keeps the optimizer, with its saved state.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let other = Sgd::builder(vec![w.clone()]).learning_rate(0.25).build()?;
    /// let before = trainer.replace_optimizer(other);
    /// assert_eq!((before.learning_rate(), trainer.optimizer().learning_rate()), (0.5, 0.25));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.core.replace_optimizer(optimizer)
    }

    /// Returns the optimizer and ends the training.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// assert_eq!(trainer.into_optimizer().learning_rate(), 0.5);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn into_optimizer(self) -> O {
        self.core.accumulator.into_optimizer()
    }

    /// Returns the parameters that have never received a gradient; see
    /// [`GradientAccumulator::unreached`](super::GradientAccumulator::unreached).
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let (w, idle) = (Var::new(&[0f32], &Device::Cpu)?, Var::new(&[0f32], &Device::Cpu)?);
    /// let optimizer = Sgd::builder(vec![("w", w.clone()), ("idle", idle)]).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).allow_unreached(["idle"]).build()?;
    /// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// assert_eq!(trainer.unreached()[0].name, "idle");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn unreached(&self) -> Vec<Parameter> {
        self.core.accumulator.unreached()
    }
}

/// Tells the other ranks of an error, unless they know.
fn told<T>(turn: Option<Turn>, done: Result<T>) -> Result<T> {
    if let (Some(turn), Err(error)) = (turn, &done) {
        turn.fail(error.to_string());
    }
    done
}
