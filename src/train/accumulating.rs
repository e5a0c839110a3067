use candle_core::{Tensor, Var};
use candle_nn::Optimizer;

use super::core::Core;
use super::loss::Loss;
use super::report::StepReport;
use crate::batch::{Batch, Drive, Failure, Fixed, MicroBatch, Outcome, samples_of};
use crate::error::{Error, PolicyError, Result, WindowLost};

/// One update from every `k` batches of a data loader, in a loop of your own: gradient accumulation without counting.
///
/// Each batch is run as it is; use it where a size that fits is known. Where it is not, [`AdaptiveTrainer`](super::AdaptiveTrainer)
/// cuts the batches itself. The update's gradient is the weighted mean over all samples, also where batches differ in length.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::AccumulatingTrainer;
/// use candle_nn::{linear, loss, AdamW, Module, Optimizer, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::new_lr(varmap.all_vars(), 1e-2)?;
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
    /// What the present window's batches took.
    outcome: Outcome,
    batches: u64,
    proven: usize,
}

impl<O: Optimizer> AccumulatingTrainer<O> {
    /// A trainer of `vars` by `optimizer`, with an update after every `micro_batches` batches.
    ///
    /// # Errors
    /// [`PolicyError::Zero`], and [`ParameterError`](crate::ParameterError) as for
    /// [`AdaptiveTrainerBuilder::build`](super::AdaptiveTrainerBuilder::build).
    pub fn new(vars: Vec<Var>, optimizer: O, micro_batches: usize) -> Result<Self> {
        Self::with_buffers(vars, optimizer, micro_batches, [])
    }

    /// The same, with variables that the forward pass changes by itself; see
    /// [`AdaptiveTrainerBuilder::buffers`](super::AdaptiveTrainerBuilder::buffers).
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_buffers<'a>(
        vars: Vec<Var>,
        optimizer: O,
        micro_batches: usize,
        buffers: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<Self> {
        if micro_batches == 0 {
            let what = "the number of micro-batches in an update";
            return Err(PolicyError::Zero { what }.into());
        }
        let buffers: Vec<Tensor> = buffers.into_iter().cloned().collect();
        Ok(Self {
            core: Core::new(vars, optimizer, &buffers)?,
            micro_batches,
            outcome: Outcome::default(),
            batches: 0,
            proven: 0,
        })
    }

    /// Adds one batch; with the `k`-th, applies the update and reports it.
    ///
    /// # Errors
    /// As for [`AdaptiveTrainer::step`](super::AdaptiveTrainer::step), with this batch not added and the ones before it kept: a
    /// batch that did not fit may be given again in smaller ones. [`WindowLost`](crate::WindowLost) where they were lost too.
    pub fn step<'b, B, L>(
        &mut self,
        batch: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    ) -> Result<Option<StepReport>>
    where
        B: Batch + ?Sized,
        L: Into<Loss>,
    {
        let total = samples_of(batch)?;
        self.core.refuse_if_interrupted()?;
        if self.outcome.sizes.is_empty() {
            self.core.begin()?;
        }
        let Self { core, proven, .. } = self;
        let device = core.device().clone();
        let mut drive = Drive {
            policy: &mut Fixed::new(total)?,
            memory: None,
            device: &device,
            step: self.batches,
            base_seed: 0,
            proven,
        };
        let run = drive.run(total, |attempt| {
            core.micro_batch(attempt, batch, &mut f)
                .map_err(|failure| match failure {
                    // Earlier batches are not here to be run again, so their loss is the user's to know.
                    Failure::Everything(error) | Failure::MicroBatch(error) => {
                        Failure::MicroBatch(error)
                    }
                })
        });
        match run {
            Ok(outcome) => self.outcome.extend(outcome),
            Err(error) => {
                if matches!(error, Error::WindowLost(_)) {
                    self.outcome = Outcome::default();
                }
                return Err(error);
            }
        }
        self.batches += 1;
        if self.outcome.sizes.len() < self.micro_batches {
            return Ok(None);
        }
        self.flush()
    }

    /// Applies an update with the batches that are left, if there are any: after the last batch of an epoch.
    ///
    /// # Errors
    /// [`WindowLost`](crate::WindowLost) where the update could not be begun, and
    /// [`UpdateInterrupted`](crate::UpdateInterrupted) where the optimizer failed half-way.
    pub fn flush(&mut self) -> Result<Option<StepReport>> {
        self.core.refuse_if_interrupted()?;
        let outcome = std::mem::take(&mut self.outcome);
        if outcome.sizes.is_empty() {
            return Ok(None);
        }
        match self.core.commit() {
            Ok(window) => Ok(Some(StepReport::new(
                self.core.updates,
                window,
                outcome,
                None,
            ))),
            Err(error) => {
                self.core.abandon()?;
                match error {
                    error @ Error::UpdateInterrupted(_) => Err(error),
                    reason => {
                        let samples = outcome.sizes.iter().sum();
                        Err(WindowLost { samples, reason }.into())
                    }
                }
            }
        }
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

    /// The Vars that have never received a gradient; see [`GradientAccumulator::unreached`](crate::GradientAccumulator::unreached).
    pub fn unreached(&self) -> Vec<Var> {
        self.core.unreached()
    }
}
