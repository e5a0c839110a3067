use candle_core::{Tensor, Var};

use super::AdaptiveTrainer;
use super::core::Core;
use crate::batch::{BatchPolicy, BatchProcessor, Observer, Observers, Predictive, Task};
use crate::error::{ParameterError, Result};
use crate::memory::DeviceMemory;
use crate::optim::Commit;

/// What an [`AdaptiveTrainer`] is made of; from [`AdaptiveTrainer::builder`].
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{AdaptiveTrainer, Predictive, Sgd};
///
/// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let trainer = AdaptiveTrainer::builder(vec![w.clone()], Sgd::new_lr(vec![w], 0.1)?)
///     .policy(Predictive::builder().at_most(16).build()?)
///     .seed(42)
///     .build()?;
/// assert_eq!(trainer.micro_batch(64), 16);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct AdaptiveTrainerBuilder<O> {
    vars: Vec<Var>,
    optimizer: O,
    memory: Option<DeviceMemory>,
    policy: Option<Box<dyn BatchPolicy>>,
    evaluation_policy: Option<Box<dyn BatchPolicy>>,
    buffers: Vec<Tensor>,
    seed: u64,
    observers: Observers,
}

impl<O: Commit> AdaptiveTrainerBuilder<O> {
    pub(super) fn new(vars: Vec<Var>, optimizer: O) -> Self {
        Self {
            vars,
            optimizer,
            memory: None,
            policy: None,
            evaluation_policy: None,
            buffers: Vec::new(),
            seed: 0,
            observers: Observers::default().of(Task::Training),
        }
    }

    /// Follows this memory's limit, and fills reports and errors with its numbers.
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.memory = Some(memory.clone());
        self
    }

    /// Cuts micro-batches by this policy; without it, [`Predictive`].
    pub fn policy(mut self, policy: impl BatchPolicy + 'static) -> Self {
        self.policy = Some(Box::new(policy));
        self
    }

    /// Cuts what is [evaluated](AdaptiveTrainer::evaluate) by this policy; without it, a [`Predictive`] of its own, since what
    /// fits without gradients is more.
    pub fn evaluation_policy(mut self, policy: impl BatchPolicy + 'static) -> Self {
        self.evaluation_policy = Some(Box::new(policy));
        self
    }

    /// Variables that the forward pass changes by itself, as BatchNorm its running statistics
    /// (`[norm.running_mean(), norm.running_var()]`): a micro-batch that fails leaves no trace in them.
    pub fn buffers<'a>(mut self, buffers: impl IntoIterator<Item = &'a Tensor>) -> Self {
        self.buffers.extend(buffers.into_iter().cloned());
        self
    }

    /// What [`MicroBatch::seed`](crate::MicroBatch::seed) is derived from; 0 without it.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Tells `observer` what happens, such as a [`Timeline`](crate::Timeline); several may be given.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// Builds the trainer. The optimizer is handed gradients whose memory is used again, as for
    /// [`GradientAccumulator::flush`](crate::GradientAccumulator::flush).
    ///
    /// # Errors
    /// [`ParameterError`]: no Var to train, one listed twice, a type that cannot be accumulated, a buffer that is no variable, or
    /// Vars on another device than the memory's.
    pub fn build(self) -> Result<AdaptiveTrainer<O>> {
        let core = Core::new(self.vars, self.optimizer, &self.buffers)?;
        let vars = core.device().location();
        let memory = self
            .memory
            .as_ref()
            .map(|memory| memory.device().location());
        if let Some(memory) = memory.filter(|memory| *memory != vars) {
            return Err(ParameterError::Device { vars, memory }.into());
        }
        let or_default = |policy: Option<Box<dyn BatchPolicy>>| {
            policy.unwrap_or_else(|| Box::new(Predictive::new()))
        };
        let mut policy = or_default(self.policy);
        let evaluation = BatchProcessor::new(or_default(self.evaluation_policy))
            .on(core.device())
            .observers(self.observers.of(Task::Evaluation));
        let evaluation = match &self.memory {
            Some(memory) => evaluation.memory(memory),
            None => evaluation,
        };
        if let Some(memory) = &self.memory {
            policy.prepare(&memory.surroundings());
        }
        Ok(AdaptiveTrainer::from_parts(
            core,
            policy,
            evaluation,
            self.memory,
            self.seed,
            self.observers,
        ))
    }
}
