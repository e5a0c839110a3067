use candle_core::{Tensor, Var};

use super::core::Core;
use super::loss::Loss;
use super::report::StepReport;
use crate::batch::{
    Batch, Drive, Failure, Fixed, MicroBatch, Observer, Observers, Outcome, Proven, Task, Watch,
    extent_of,
};
use crate::error::{Error, Phase, PolicyError, Result, WindowLost};
use crate::memory::DeviceMemory;
use crate::optim::Commit;

/// One update from every `k` batches of a data loader, in a loop of your own: gradient accumulation without counting.
///
/// Each batch is run as it is, once more where it did not fit but one of its size has before; use it where a size that fits is
/// known. Where it is not, [`AdaptiveTrainer`](super::AdaptiveTrainer)
/// cuts the batches itself. The update's gradient is the weighted mean over all samples, also where batches differ in length.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AccumulatingTrainer, AdamW};
/// use candle_nn::{linear, loss, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::new_lr(&varmap, 1e-2)?;
/// let mut trainer = AccumulatingTrainer::new(varmap.all_vars(), optimizer, 4)?;
///
/// let mut updates = 0;
/// for _ in 0..10 {
///     let x = Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?;
///     let report = trainer.step(&x, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
///     updates += usize::from(report.is_some());
/// }
/// let rest = trainer.flush()?.expect("two batches are left");
/// assert_eq!((updates, rest.samples), (2, 16));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct AccumulatingTrainer<O> {
    core: Core<O>,
    micro_batches: usize,
    memory: Option<DeviceMemory>,
    seed: u64,
    /// What the present window's batches took.
    window: Outcome,
    peak: Option<u64>,
    batches: u64,
    proven: Proven,
    observers: Observers,
}

impl<O: Commit> AccumulatingTrainer<O> {
    /// A trainer of `vars` by `optimizer`, with an update after every `micro_batches` batches.
    ///
    /// # Errors
    /// [`PolicyError::Zero`], and [`ParameterError`](crate::ParameterError) as for
    /// [`AdaptiveTrainerBuilder::build`](super::AdaptiveTrainerBuilder::build).
    pub fn new(vars: Vec<Var>, optimizer: O, micro_batches: usize) -> Result<Self> {
        if micro_batches == 0 {
            let what = "the number of micro-batches in an update";
            return Err(PolicyError::Zero { what }.into());
        }
        Ok(Self {
            core: Core::new(vars, optimizer, &[])?,
            micro_batches,
            memory: None,
            seed: 0,
            window: Outcome::default(),
            peak: None,
            batches: 0,
            proven: Proven::default(),
            observers: Observers::default().of(Task::Training),
        })
    }

    /// Fills reports and errors with this memory's numbers, and ends a batch that goes over its limit in the forward pass.
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.memory = Some(memory.clone());
        self
    }

    /// Variables that the forward pass changes by itself; see
    /// [`AdaptiveTrainerBuilder::buffers`](super::AdaptiveTrainerBuilder::buffers).
    ///
    /// # Errors
    /// [`ParameterError`](crate::ParameterError) for a tensor that is no variable.
    pub fn buffers<'a>(mut self, buffers: impl IntoIterator<Item = &'a Tensor>) -> Result<Self> {
        let buffers: Vec<Tensor> = buffers.into_iter().cloned().collect();
        self.core.set_buffers(&buffers)?;
        Ok(self)
    }

    /// Tells `observer` what happens; several may be given. The update of a window is told as a batch without samples, with the
    /// number of the window's last one.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// What [`MicroBatch::seed`] is derived from; 0 without it.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Adds one batch; with the `k`-th, applies the update and reports it.
    ///
    /// # Errors
    /// As for [`AdaptiveTrainer::step`](super::AdaptiveTrainer::step), with this batch not added and the ones before it kept: a
    /// batch that did not fit may be given again in smaller ones. [`WindowLost`](crate::WindowLost) where this window's batches
    /// were lost, all of them: while this one was added, or because the update could not be begun.
    pub fn step<'b, B, L>(
        &mut self,
        batch: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<Option<StepReport>>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let extent = extent_of(batch)?;
        self.core.refuse_if_interrupted()?;
        if self.window.sizes.is_empty() {
            self.core.begin()?;
            self.peak = None;
        }
        let scope = self.memory.as_ref().map(DeviceMemory::peak_scope);
        let Self {
            core,
            proven,
            observers,
            ..
        } = self;
        let watch = Watch::begin(
            observers,
            self.memory.as_ref(),
            self.batches,
            extent.samples,
        );
        let device = core.device().clone();
        let mut drive = Drive {
            policy: &mut Fixed::new(extent.samples)?,
            memory: self.memory.as_ref(),
            device: &device,
            step: self.batches,
            base_seed: self.seed,
            proven,
            observers,
        };
        let run = drive.run(extent, |attempt| {
            core.micro_batch(attempt, batch, &mut f)
                .map_err(|failure| match failure {
                    // Earlier batches are not here to be run again, so their loss is the user's to know.
                    Failure::Everything(error) => Failure::Final(error),
                    failure => failure,
                })
        });
        let peak = scope.and_then(|scope| scope.peak());
        match &run {
            Ok(outcome) => watch.ended(outcome, peak, None, false),
            Err(error) => watch.failed(error, None),
        }
        self.peak = self.peak.max(peak);
        if self.core.samples() == 0 {
            self.window = Outcome::default();
        }
        self.window.extend(run?);
        self.batches += 1;
        if self.window.sizes.len() < self.micro_batches {
            return Ok(None);
        }
        self.flush().map_err(|reason| self.lose_window(reason))
    }

    /// After a batch was added but its update failed: to give the batch again must not count it twice.
    fn lose_window(&mut self, reason: Error) -> Error {
        match self.drop_window() {
            0 => reason, // the optimizer had been called, so there is nothing left to lose
            samples => WindowLost { samples, reason }.into(),
        }
    }

    /// Leaves no trace of the present window, and returns how many samples it held.
    fn drop_window(&mut self) -> usize {
        self.core.abandon();
        std::mem::take(&mut self.window).sizes.iter().sum()
    }

    /// Applies an update with the batches that are left, if there are any: after the last batch of an epoch.
    ///
    /// # Errors
    /// Those of [`GradientAccumulator::flush`](super::GradientAccumulator::flush), with the window as it was where the update
    /// could not be begun, and [`UpdateInterrupted`](crate::UpdateInterrupted) where the optimizer failed half-way.
    pub fn flush(&mut self) -> Result<Option<StepReport>> {
        self.core.refuse_if_interrupted()?;
        if self.window.sizes.is_empty() {
            return Ok(None);
        }
        let scope = self.memory.as_ref().map(DeviceMemory::peak_scope);
        let step = self.batches.saturating_sub(1); // the update belongs to the last batch
        let watch = Watch::begin(&self.observers, self.memory.as_ref(), step, 0);
        let memory = self.memory.as_ref().zip(scope.as_ref());
        let core = &mut self.core;
        let committed = (self.observers).phase(step, Phase::Optimizer, memory, || core.commit());
        let update_peak = scope.and_then(|scope| scope.peak());
        match &committed {
            Ok(window) => watch.ended(&Outcome::default(), update_peak, None, window.is_some()),
            Err(error) => watch.failed(error, None),
        }
        if committed.is_err() && self.core.samples() == 0 {
            // Emptied because the optimizer was called: nothing of it may count in the next window.
            self.drop_window();
        }
        let window = committed?;
        let peak = self.peak.max(update_peak);
        let outcome = std::mem::take(&mut self.window);
        Ok(Some(StepReport::new(
            self.core.updates,
            window,
            outcome,
            peak,
        )))
    }

    /// Samples added since the last update.
    pub fn samples(&self) -> usize {
        self.core.samples()
    }

    /// Updates applied so far.
    pub fn updates(&self) -> u64 {
        self.core.updates
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &O {
        self.core.optimizer()
    }

    /// The optimizer, for example to set its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.core.optimizer_mut()
    }

    /// Goes on with another optimizer, and returns the one so far; see
    /// [`AdaptiveTrainer::replace_optimizer`](super::AdaptiveTrainer::replace_optimizer).
    pub fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.core.replace_optimizer(optimizer)
    }

    /// Ends the training and gives the optimizer back.
    pub fn into_optimizer(self) -> O {
        self.core.into_optimizer()
    }

    /// The Vars that have never received a gradient; see [`GradientAccumulator::unreached`](crate::GradientAccumulator::unreached).
    pub fn unreached(&self) -> Vec<Var> {
        self.core.unreached()
    }
}
