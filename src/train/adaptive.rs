use super::accumulation::Accumulation;
use super::core::Core;
use super::loss::Loss;
use super::report::StepReport;
use crate::batch::{Batch, Engine, MicroBatch, Plan, Processed, extent_of};
use crate::error::{Error, Result};
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
/// [`replace_optimizer`](Self::replace_optimizer), so that no parameter is updated twice.
#[derive(Debug)]
pub struct AdaptiveTrainer<O> {
    pub(super) core: Core<O>,
    pub(super) engine: Engine,
    /// Its policy has a model of its own: without gradients, samples need less memory.
    pub(super) evaluation: Engine,
    /// What the batches since the last update took.
    pub(super) window: Processed<()>,
    pub(super) pending: usize,
}

impl<O: Commit> AdaptiveTrainer<O> {
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
    /// - [`WindowLost`](crate::error::WindowLost) if batches that were [accumulated](Self::accumulate) before were lost with this one;
    /// - [`UpdateInterrupted`](crate::error::UpdateInterrupted) if the optimizer failed half-way.
    pub fn step<'b, B: Batch + ?Sized, L: Into<Loss>>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<StepReport> {
        let report = self.run(batch, f, Core::update)?;
        Ok(self.complete(report))
    }

    /// [`step`](Self::step) with a closure that fails with your own error type, which is returned as it is. An exhaustion or device
    /// fault within it is completed and comes back converted; [`Error::downcast_ref`] finds yours in it.
    ///
    /// An exhaustion within the error is found through its [`source`](std::error::Error::source) and retried.
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
    /// # Errors
    /// Those of [`step`](Self::step). The batches before are kept if the error came before anything of this batch was added.
    /// Otherwise they are lost, and the error is [`WindowLost`](crate::error::WindowLost) with their number of samples.
    pub fn accumulate<'b, B: Batch + ?Sized, L: Into<Loss>>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<()> {
        self.run(batch, f, |_, _, _| Ok(()))
    }

    /// Applies one update with the batches that were accumulated. Returns `None` if there are none.
    ///
    /// # Errors
    /// Those of [`GradientAccumulator::update`](super::GradientAccumulator::update): unless it is
    /// [`UpdateInterrupted`](crate::error::UpdateInterrupted), the batches are kept and `update` can be called again.
    /// [`WindowLost`](crate::error::WindowLost) if a panic in a closure lost them.
    pub fn update(&mut self) -> Result<Option<StepReport>> {
        if self.samples() == 0 {
            self.clear_window();
            self.core.report_lost()?;
            return Ok(None);
        }
        let (core, engine) = (&mut self.core, &mut self.engine);
        let updated = engine.batch(0, |engine| {
            let mut processed = Processed::new();
            let report = core.update(engine, &mut processed)?;
            Ok((processed, report))
        });
        let report = self.extend_window(updated)?;
        Ok(Some(self.complete(report)))
    }

    /// Accumulates a batch, and ends it with `end`.
    fn run<'b, B: Batch + ?Sized, L: Into<Loss>, R>(
        &mut self,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
        end: impl FnOnce(&mut Core<O>, &Engine, &mut Processed<()>) -> Result<R>,
    ) -> Result<R> {
        let extent = extent_of(batch)?;
        let earlier = self.samples();
        if earlier == 0 {
            self.clear_window();
        }
        self.core.begin()?;
        let (core, engine) = (&mut self.core, &mut self.engine);
        let done = engine.batch(extent.samples, |engine| {
            let mut accumulation = Accumulation::new(core, batch, f);
            let run = engine.run(extent, &mut accumulation);
            let mut processed = accumulation.finish(run)?;
            let ended = end(core, engine, &mut processed);
            let ended = ended.map_err(|error| core.lose_window(earlier, error))?;
            Ok((processed, ended))
        });
        self.extend_window(done)
    }

    /// Adds a batch to the window, or empties the window if an error has lost it.
    fn extend_window<R>(&mut self, done: Result<(Processed<()>, R)>) -> Result<R> {
        match done {
            Ok((processed, ended)) => {
                self.window.extend(processed);
                self.pending += 1;
                Ok(ended)
            }
            Err(error) => {
                if self.samples() == 0 {
                    self.clear_window();
                }
                Err(error)
            }
        }
    }

    fn clear_window(&mut self) {
        (self.window, self.pending) = (Processed::new(), 0);
    }

    /// Adds to the report of an update what its batches took.
    fn complete(&mut self, report: StepReport) -> StepReport {
        self.pending = 0;
        let window = std::mem::replace(&mut self.window, Processed::new());
        StepReport {
            retries: window.retries,
            recomputed: window.recomputed,
            events: window.events,
            peak: window.peak,
            ..report
        }
    }

    /// Returns the micro-batch size that a batch of `samples` would begin with.
    pub fn micro_batch(&self, samples: usize) -> usize {
        self.engine.policy.size(samples)
    }

    /// Returns what the policy has learned and why it uses its size; `None` for a policy without a plan. `{}` is for people,
    /// serde for programs.
    pub fn plan(&self) -> Option<Plan> {
        self.engine.policy.plan()
    }

    /// Returns the number of updates so far, including those skipped because a gradient was not finite.
    pub fn updates(&self) -> u64 {
        self.core.accumulator.updates
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
