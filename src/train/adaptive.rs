use super::core::{Accumulation, Core};
use super::loss::Loss;
use super::report::StepReport;
use super::summary::UpdateSummary;
use super::update::update;
use crate::batch::{Batch, BatchProcessor, Engine, MicroBatch, Outcome, Watch, extent_of};
use crate::error::{Error, Result, WindowLost};
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
/// use candle_nn::{linear, loss, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::builder(&varmap).learning_rate(0.05).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
///
/// let x = Tensor::randn(0f32, 1., (64, 4), &Device::Cpu)?;
/// let y = x.sum(1)?.ge(0f64)?.to_dtype(DType::U32)?;
/// let batch = (x, y);
/// let first = trainer.step(&batch, |(x, y), _| loss::cross_entropy(&model.forward(&x)?, &y))?;
/// for _ in 0..20 {
///     // The closure pretends that the device has room for 24 samples only.
///     let report = trainer.step(&batch, |(x, y), _| {
///         if x.dim(0)? > 24 {
///             candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY")
///         }
///         loss::cross_entropy(&model.forward(&x)?, &y)
///     })?;
///     assert_eq!(report.samples, 64);
///     println!("{report}");
/// }
/// let last = trainer.step(&batch, |(x, y), _| loss::cross_entropy(&model.forward(&x)?, &y))?;
/// assert!(last.loss.read()? < first.loss.read()?);
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
/// [`replace_optimizer`](Self::replace_optimizer), so that no parameter is updated twice.
#[derive(Debug)]
pub struct AdaptiveTrainer<O> {
    pub(super) core: Core<O>,
    pub(super) engine: Engine,
    /// Its policy has a model of its own: without gradients, samples need less memory.
    pub(super) evaluation: BatchProcessor,
    /// The batches accumulated since the last update.
    window: Outcome,
    peak: Option<u64>,
    pending: usize,
    batches: u64,
}

impl<O: Commit> AdaptiveTrainer<O> {
    pub(super) fn new(core: Core<O>, engine: Engine, evaluation: BatchProcessor) -> Self {
        Self {
            core,
            engine,
            evaluation,
            window: Outcome::default(),
            peak: None,
            pending: 0,
            batches: 0,
        }
    }

    /// Applies one update with the gradient of the whole batch.
    ///
    /// `f` receives a micro-batch and its [`MicroBatch`], and returns the loss: a tensor with one element, the mean over the
    /// samples that it received, or a [`Loss`]. It is called again for a micro-batch that did not fit, and must not keep what
    /// it receives. To return an error of your own, wrap it with [`Error::external`], or call [`try_step`](Self::try_step).
    ///
    /// # Errors
    /// All but the last leave parameters, optimizer, buffers and counters as they were:
    /// - [`BatchError`](crate::error::BatchError), [`LossError`](crate::error::LossError);
    /// - [`ResourceExhausted`](crate::ResourceExhausted) if a single sample does not fit, or the policy stops;
    /// - [`DeviceFault`](crate::DeviceFault), which is never retried;
    /// - any other error of candle or of `f`, at once and unchanged;
    /// - [`WindowLost`] if batches that were [accumulated](Self::accumulate) before were lost with this one;
    /// - [`UpdateInterrupted`](crate::error::UpdateInterrupted) if the optimizer failed half-way.
    pub fn step<'b, B, L>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<StepReport>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let watch = self.begin(batch)?;
        let earlier = self.core.accumulator.samples();
        let stepped = self.run(batch, f).and_then(|mut outcome| {
            let summary = update(&mut self.core, &self.engine, self.batches, &mut outcome);
            let summary = summary.map_err(|error| self.lose_window(earlier, error))?;
            Ok((outcome, summary))
        });
        let ended = stepped.as_ref();
        self.end(
            &watch,
            ended.map(|(outcome, summary)| (outcome, is_updated(summary))),
        );
        let (outcome, summary) = stepped?;
        self.pending = 0;
        self.window.extend(outcome);
        Ok(self.report(summary))
    }

    /// [`step`](Self::step) with a closure that fails with your own error type, which is returned as it is.
    ///
    /// An exhaustion within the error is found through its [`source`](std::error::Error::source) and retried.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// #[derive(Debug, thiserror::Error)]
    /// enum MyError {
    ///     #[error("the text is empty")]
    ///     Empty,
    ///     #[error(transparent)]
    ///     Candle(#[from] candle_core::Error),
    ///     #[error(transparent)]
    ///     Headroom(#[from] candle_headroom::Error),
    /// }
    ///
    /// let w = Var::new(&[1f32], &Device::Cpu)?;
    /// let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![w.clone()]).build()?).build()?;
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let error = trainer.try_step(&x, |_, _| Err::<Tensor, _>(MyError::Empty)).unwrap_err();
    /// assert!(matches!(error, MyError::Empty));
    /// trainer.try_step(&x, |x, _| Ok::<_, MyError>(x.broadcast_mul(&w)?.mean_all()?)).unwrap();
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// `f`'s own, and those of [`step`](Self::step) converted.
    pub fn try_step<'b, B, L, E>(
        &mut self,
        batch: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> Result<L, E>,
    ) -> Result<StepReport, E>
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

    /// Accumulates the gradients of a batch for the next [`update`](Self::update).
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.1).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// for batch in [Tensor::new(&[1f32, 3.], &Device::Cpu)?, Tensor::new(&[5f32, 7.], &Device::Cpu)?] {
    ///     trainer.accumulate(&batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// }
    /// let report = trainer.update()?.expect("two batches");
    /// assert_eq!((report.samples, report.loss.read()?), (4, 21.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`step`](Self::step). The batches before are kept if the error came before anything of this batch was added.
    /// Otherwise they are lost, and the error is [`WindowLost`] with their number of samples.
    pub fn accumulate<'b, B, L>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<()>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let watch = self.begin(batch)?;
        let run = self.run(batch, f);
        self.end(&watch, run.as_ref().map(|outcome| (outcome, Some(false))));
        self.window.extend(run?);
        self.pending += 1;
        Ok(())
    }

    /// Applies one update with the batches that were accumulated. Returns `None` if there are none.
    ///
    /// # Errors
    /// Those of [`GradientAccumulator::update`](super::GradientAccumulator::update): unless it is
    /// [`UpdateInterrupted`](crate::error::UpdateInterrupted), the batches are kept and `update` can be called again.
    /// [`WindowLost`] if a panic in a closure lost them.
    pub fn update(&mut self) -> Result<Option<StepReport>> {
        self.core.report_lost()?;
        if self.core.accumulator.samples() == 0 {
            self.clear_window();
            return Ok(None);
        }
        let memory = self.engine.memory.clone();
        // The update belongs to the last batch.
        let step = self.batches.saturating_sub(1);
        let watch = Watch::begin(&self.engine.observers, memory.as_ref(), step, 0);
        let mut outcome = Outcome::default();
        let summary = update(&mut self.core, &self.engine, step, &mut outcome);
        let plan = self.engine.observers.plan(&*self.engine.policy);
        self.peak = self.peak.max(watch.peak());
        match summary {
            Ok(summary) => {
                let observers = &self.engine.observers;
                watch.ended(
                    observers,
                    memory.as_ref(),
                    &outcome,
                    plan,
                    is_updated(&summary),
                );
                self.pending = 0;
                self.window.extend(outcome);
                Ok(Some(self.report(summary)))
            }
            Err(error) => {
                watch.failed(&self.engine.observers, &error, plan);
                if self.core.accumulator.samples() == 0 {
                    self.clear_window();
                }
                Err(error)
            }
        }
    }

    fn begin<B: Batch + ?Sized>(&mut self, batch: &B) -> Result<Watch> {
        let extent = extent_of(batch)?;
        self.core.begin()?;
        if self.core.accumulator.samples() == 0 {
            self.clear_window();
        }
        let memory = self.engine.memory.as_ref();
        let samples = extent.samples;
        Ok(Watch::begin(
            &self.engine.observers,
            memory,
            self.batches,
            samples,
        ))
    }

    fn run<'b, B, L>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<Outcome>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let extent = extent_of(batch)?;
        let mut accumulation = Accumulation::new(&mut self.core, batch, f);
        let run = self.engine.run(self.batches, extent, &mut accumulation);
        accumulation.finish(run)
    }

    /// Reports the end of a batch to the observers, and counts it if it succeeded.
    fn end(&mut self, watch: &Watch, ended: Result<(&Outcome, Option<bool>), &Error>) {
        let observers = &self.engine.observers;
        let plan = observers.plan(&*self.engine.policy);
        self.peak = self.peak.max(watch.peak());
        match ended {
            Ok((outcome, updated)) => {
                watch.ended(
                    observers,
                    self.engine.memory.as_ref(),
                    outcome,
                    plan,
                    updated,
                );
                self.batches += 1;
            }
            Err(error) => {
                watch.failed(observers, error, plan);
                if self.core.accumulator.samples() == 0 {
                    self.clear_window();
                }
            }
        }
    }

    /// Drops the window after an update failed within a step: giving the batch again must not count it twice.
    fn lose_window(&mut self, earlier: usize, reason: Error) -> Error {
        let samples = self.core.accumulator.samples();
        self.core.abandon();
        match (earlier, samples) {
            (0, _) | (_, 0) => reason,
            _ => WindowLost::new(samples, reason).into(),
        }
    }

    fn clear_window(&mut self) {
        self.window = Outcome::default();
        (self.peak, self.pending) = (None, 0);
    }

    fn report(&mut self, summary: Option<UpdateSummary>) -> StepReport {
        let outcome = std::mem::take(&mut self.window);
        StepReport::new(self.core.updates, summary, outcome, self.peak.take())
    }

    /// Returns the number of updates so far, including those skipped because a gradient was not finite.
    pub fn updates(&self) -> u64 {
        self.core.updates
    }

    /// Returns the number of batches accumulated since the last update.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns the number of samples accumulated since the last update.
    pub fn samples(&self) -> usize {
        self.core.accumulator.samples()
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        self.core.accumulator.optimizer()
    }

    /// Returns the optimizer, for example to set its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.core.accumulator.optimizer_mut()
    }

    /// Continues with another optimizer and returns the previous one. Accumulated batches are dropped. After an interrupted
    /// update, restore the parameters first.
    pub fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.clear_window();
        self.core.accumulator.replace_optimizer(optimizer)
    }

    /// Returns the optimizer and ends the training.
    pub fn into_optimizer(self) -> O {
        self.core.accumulator.into_optimizer()
    }

    /// Returns the parameters that have never received a gradient; see
    /// [`GradientAccumulator::unreached`](super::GradientAccumulator::unreached). They are logged with `tracing` after the
    /// first update.
    pub fn unreached(&self) -> Vec<Parameter> {
        self.core.accumulator.unreached()
    }
}

/// Whether parameters changed; without a summary nothing had weight.
fn is_updated(summary: &Option<UpdateSummary>) -> Option<bool> {
    summary
        .as_ref()
        .map_or(Some(false), |summary| summary.updated)
}
