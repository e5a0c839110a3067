use candle_core::Var;

use super::builder::AdaptiveTrainerBuilder;
use super::core::Core;
use super::explanation::Explanation;
use super::loss::Loss;
use super::report::StepReport;
use crate::batch::{
    Batch, BatchPolicy, BatchProcessor, Drive, Event, MicroBatch, Moment, Observers, Plan,
    Processed, Proven, Watch, extent_of,
};
use crate::error::{Error, Phase, Remedy, Result};
use crate::memory::{DeviceMemory, PeakScope};
use crate::optim::Commit;

/// Trains with the whole batch's gradient at whatever micro-batch size fits, in a loop of your own.
///
/// [`step`](Self::step) cuts the batch, runs your closure on each micro-batch, accumulates, and applies one update. When
/// memory runs out, only the micro-batch at hand is dropped and computed again, smaller; what was finished is kept. Each
/// sample counts exactly once, and the update happens exactly once or, with an error, not at all.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdamW, AdaptiveTrainer};
/// use candle_nn::{linear, loss, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::new_lr(&varmap, 0.05)?;
/// let mut trainer = AdaptiveTrainer::builder(varmap.all_vars(), optimizer).build()?;
///
/// let x = Tensor::randn(0f32, 1., (64, 4), &Device::Cpu)?;
/// let y = x.sum(1)?.ge(0f64)?.to_dtype(DType::U32)?;
/// let batch = (x, y);
/// let first = trainer.step(&batch, |(x, y), _| loss::cross_entropy(&model.forward(&x)?, &y))?;
/// for _ in 0..20 {
///     // A device with room for 24 samples only, as the closure makes believe.
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
/// # The optimizer
/// One over the same Vars. This crate's ([`AdamW`](crate::AdamW) and its like) update all parameters or none and allocate
/// nothing, so an update cannot run out of memory. candle's work as they are, and any other [`candle_nn::Optimizer`]
/// wrapped in [`Foreign`](crate::Foreign); those advance Var by Var and cannot undo it: where one fails half-way, the step
/// returns [`UpdateInterrupted`](crate::UpdateInterrupted), and so does every further one until
/// [`replace_optimizer`](Self::replace_optimizer) is called, so that no parameter is silently updated twice.
#[derive(Debug)]
pub struct AdaptiveTrainer<O> {
    core: Core<O>,
    pub(super) policy: Box<dyn BatchPolicy>,
    memory: Option<DeviceMemory>,
    seed: u64,
    proven: Proven,
    /// With a model of its own: without gradients it takes less.
    pub(super) evaluation: BatchProcessor,
    observers: Observers,
}

impl<O: Commit> AdaptiveTrainer<O> {
    /// A trainer of `vars` (as a rule `varmap.all_vars()`) by `optimizer`, which was made for the same Vars.
    pub fn builder(vars: Vec<Var>, optimizer: O) -> AdaptiveTrainerBuilder<O> {
        AdaptiveTrainerBuilder::new(vars, optimizer)
    }

    pub(super) fn from_parts(
        core: Core<O>,
        policy: Box<dyn BatchPolicy>,
        evaluation: BatchProcessor,
        memory: Option<DeviceMemory>,
        seed: u64,
        observers: Observers,
    ) -> Self {
        Self {
            evaluation,
            core,
            policy,
            memory,
            seed,
            proven: Proven::default(),
            observers,
        }
    }

    /// One update with the gradient of the whole of `batch`.
    ///
    /// `f` is given a micro-batch and what it is ([`MicroBatch`]), and returns its loss: a plain tensor with the mean over
    /// the samples it was given, or a [`Loss`]. It may be called more often than there are micro-batches, since one that
    /// did not fit is run again, and must not keep what it is given.
    ///
    /// # Errors
    /// All but the last leave parameters, optimizer, buffers and counters as they were:
    /// - [`BatchError`](crate::BatchError), [`PolicyError`](crate::PolicyError), [`LossError`](crate::LossError);
    /// - [`ResourceExhausted`](crate::ResourceExhausted) where a single sample does not fit, or the policy does not go
    ///   lower;
    /// - [`DeviceFault`](crate::DeviceFault), which is never retried;
    /// - any other error of candle's or of `f`'s, at once and unchanged;
    /// - [`UpdateInterrupted`](crate::UpdateInterrupted) where the optimizer failed half-way.
    pub fn step<'b, B, L>(
        &mut self,
        batch: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<StepReport>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let extent = extent_of(batch)?;
        self.core.begin()?;
        let scope = self.memory.as_ref().map(DeviceMemory::peak_scope);
        let Self {
            core,
            policy,
            observers,
            ..
        } = self;
        let device = core.device().clone();
        let step = core.updates;
        let watch = Watch::begin(observers, self.memory.as_ref(), step, extent.samples);
        let mut drive = Drive {
            policy: &mut **policy,
            memory: self.memory.as_ref(),
            device: &device,
            step,
            base_seed: self.seed,
            proven: &mut self.proven,
            observers,
        };
        let stepped = drive
            .run(extent, |attempt| core.micro_batch(attempt, batch, &mut f))
            .and_then(|mut outcome| {
                let update = self
                    .memory
                    .as_ref()
                    .map(|memory| (memory, memory.peak_scope()));
                let update = update.as_ref().map(|(memory, scope)| (*memory, scope));
                let window = observers.phase(step, Phase::Optimizer, update, || core.commit())?;
                if let Some(event) = update.and_then(|(memory, scope)| over_limit(memory, scope)) {
                    observers.tell(&Moment::Happened {
                        task: observers.task,
                        step,
                        event: &event,
                        plan: observers.plan(&**policy),
                    });
                    outcome.events.push(event);
                }
                Ok((outcome, window))
            });
        let plan = observers.plan(&**policy);
        match stepped {
            Ok((outcome, window)) => {
                let peak = scope.and_then(|scope| scope.peak());
                watch.ended(&outcome, peak, plan, window.is_some());
                Ok(StepReport::new(core.updates, window, outcome, peak))
            }
            Err(error) => {
                core.abandon();
                let remedies = core.optimizer().remedies();
                let error = describe(error, remedies, self.memory.as_ref(), scope);
                watch.failed(&error, plan);
                Err(error)
            }
        }
    }

    /// Updates applied so far.
    pub fn updates(&self) -> u64 {
        self.core.updates
    }

    /// The micro-batch size that a batch of `samples` would begin with.
    pub fn micro_batch(&self, samples: usize) -> usize {
        self.policy.size(samples)
    }

    /// Runs `f` over all samples of `data` in order, as many at a time as fit without gradients, and returns what it made
    /// of each chunk: for evaluation between updates.
    ///
    /// A chunk that does not fit is computed again, smaller, and counts once; with an error there are no results at all, so
    /// nothing half-done can be taken for a metric. [Named buffers](AdaptiveTrainerBuilder::buffers) are afterwards what
    /// they were. Weigh a chunk's mean by its samples: chunks differ in size.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let w = Var::new(&[2f32], &Device::Cpu)?;
    /// let mut trainer = AdaptiveTrainer::builder(vec![w.clone()], Sgd::new_lr(vec![w.clone()], 0.1)?).build()?;
    /// let data = Tensor::arange(0f32, 100., &Device::Cpu)?;
    /// let evaluated = trainer.evaluate(&data, |x, _| {
    ///     if x.dim(0)? > 40 {
    ///         candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY") // room for 40
    ///     }
    ///     x.broadcast_mul(&w)?.sum_all()?.to_scalar::<f32>()
    /// })?;
    /// assert_eq!(evaluated.results.iter().sum::<f32>(), 2. * 4950.);
    /// assert_eq!(evaluated.sizes, [25, 25, 25, 25]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`process_batches`](crate::process_batches).
    pub fn evaluate<'b, B, T>(
        &mut self,
        data: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>>
    where
        B: Batch + ?Sized,
    {
        self.core.save_buffers()?;
        let processed = self.evaluation.process(data, f);
        let restored = self.core.restore_buffers();
        let processed = processed?;
        restored?;
        Ok(processed)
    }

    /// What its policy believes of training's micro-batches and why it uses the size that it uses; `None` for a policy that
    /// does not tell.
    pub fn plan(&self) -> Option<Plan> {
        self.policy.plan()
    }

    /// What is believed of training and of evaluation, for people (`{}`) and, with the feature `serde`, for programs.
    pub fn explain(&self) -> Explanation {
        let evaluation = self.evaluation.plan();
        Explanation {
            training: self.plan(),
            evaluation: evaluation.filter(|_| self.evaluation.has_run()),
        }
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &O {
        self.core.optimizer()
    }

    /// The optimizer, for example to set its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.core.optimizer_mut()
    }

    /// Goes on with another optimizer, and returns the one so far. After an interrupted update this is the way back, once
    /// the parameters have been restored.
    pub fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.core.replace_optimizer(optimizer)
    }

    /// Ends the training and gives the optimizer back.
    pub fn into_optimizer(self) -> O {
        self.core.into_optimizer()
    }

    /// The Vars that have never received a gradient; see
    /// [`GradientAccumulator::unreached`](crate::GradientAccumulator::unreached). They are also reported to `tracing` once,
    /// after the first update.
    pub fn unreached(&self) -> Vec<Var> {
        self.core.unreached()
    }
}

/// Adds what the optimizer could do without, and what is known of the memory where the exhaustion lies outside any
/// micro-batch.
fn describe(
    mut error: Error,
    remedies: Vec<Remedy>,
    memory: Option<&DeviceMemory>,
    scope: Option<PeakScope>,
) -> Error {
    if let Error::ResourceExhausted(exhausted) = &mut error {
        exhausted.remedies.extend(remedies);
    }
    if let (Error::ResourceExhausted(exhausted), Some(memory), Some(scope)) =
        (&mut error, memory, &scope)
        && exhausted.micro_batch.is_none()
    {
        memory.describe(scope, None, exhausted);
        memory.name_neighbours(exhausted);
    }
    error
}

/// The update's own overrun: no micro-batch size would have helped, so it is told and nothing more.
fn over_limit(memory: &DeviceMemory, scope: &PeakScope) -> Option<Event> {
    let (peak, limit) = (scope.peak()?, memory.limit()?);
    let event = (peak > limit).then_some(Event::OverLimit { peak, limit })?;
    tracing::warn!("{event}");
    Some(event)
}
