use candle_core::Tensor;

use super::adaptive::AdaptiveTrainer;
use super::core::Core;
use crate::batch::{BatchPolicy, BatchProcessor, Engine, Observer, Observers, Predictive, Task};
use crate::error::{ParameterError, Result};
use crate::memory::DeviceMemory;
use crate::optim::Commit;

/// Builds an [`AdaptiveTrainer`]; made by [`AdaptiveTrainer::builder`].
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{AdaptiveTrainer, Predictive, Sgd};
///
/// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let trainer = AdaptiveTrainer::builder(Sgd::builder(vec![w]).learning_rate(0.1).build()?)
///     .policy(Predictive::builder().at_most(16).build()?)
///     .seed(42)
///     .build()?;
/// assert_eq!(trainer.micro_batch(64), 16);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct AdaptiveTrainerBuilder<O> {
    optimizer: O,
    memory: Option<DeviceMemory>,
    policy: Box<dyn BatchPolicy>,
    evaluation_policy: Box<dyn BatchPolicy>,
    buffers: Vec<Tensor>,
    seed: u64,
    observers: Observers,
}

impl<O: Commit> AdaptiveTrainer<O> {
    /// Trains the parameters of this optimizer.
    pub fn builder(optimizer: O) -> AdaptiveTrainerBuilder<O> {
        AdaptiveTrainerBuilder {
            optimizer,
            memory: None,
            policy: Box::new(Predictive::new()),
            evaluation_policy: Box::new(Predictive::new()),
            buffers: Vec::new(),
            seed: 0,
            observers: Observers::default().of(Task::Training),
        }
    }
}

impl<O: Commit> AdaptiveTrainerBuilder<O> {
    /// Follows this memory's limit, and completes reports and errors with its numbers.
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.memory = Some(memory.clone());
        self
    }

    /// Cuts batches by this policy. The default is [`Predictive`].
    pub fn policy(mut self, policy: impl BatchPolicy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// Cuts [evaluation](AdaptiveTrainer::evaluate) data by this policy. The default is a separate [`Predictive`], because more
    /// samples fit without gradients.
    pub fn evaluation_policy(mut self, policy: impl BatchPolicy + 'static) -> Self {
        self.evaluation_policy = Box::new(policy);
        self
    }

    /// Adds variables that the forward pass changes by itself, such as BatchNorm's running statistics
    /// (`[norm.running_mean(), norm.running_var()]`): a micro-batch that fails or panics leaves no trace in them.
    pub fn buffers<'a>(mut self, buffers: impl IntoIterator<Item = &'a Tensor>) -> Self {
        self.buffers.extend(buffers.into_iter().cloned());
        self
    }

    /// Sets the seed from which [`MicroBatch::seed`](crate::MicroBatch::seed) is derived; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Adds an observer, such as a [`Timeline`](crate::Timeline).
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// Builds the trainer. The optimizer receives gradients whose memory is reused: it must copy what it keeps.
    ///
    /// # Errors
    /// [`ParameterError`]: no parameter to train, one listed twice, a type that cannot be accumulated, a buffer that is not a
    /// variable, or parameters on another device than the memory's.
    pub fn build(self) -> Result<AdaptiveTrainer<O>> {
        let core = Core::new(self.optimizer, &self.buffers)?;
        let device = core.device().clone();
        let vars = device.location();
        if let Some(memory) = &self.memory
            && memory.device().location() != vars
        {
            let memory = memory.device().location();
            return Err(ParameterError::Device { vars, memory }.into());
        }
        let evaluation = self.observers.of(Task::Evaluation);
        let mut engine = Engine::new(self.policy, device.clone(), self.observers);
        let mut evaluation = Engine::new(self.evaluation_policy, device.clone(), evaluation);
        engine.seed = self.seed;
        if let Some(memory) = &self.memory {
            engine.use_memory(memory);
            evaluation.use_memory(memory);
        }
        let evaluation = BatchProcessor::from_engine(evaluation, Some(device));
        Ok(AdaptiveTrainer::new(core, engine, evaluation))
    }
}
