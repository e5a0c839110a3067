use std::sync::Arc;

use candle_core::Tensor;

use super::adaptive::AdaptiveTrainer;
use super::buffers::Reach;
use super::core::Core;
use super::cut::Checks;
use super::ranks::join;
use super::report::Settings;
use crate::batch::{BatchPolicy, Engine, Observer, Predictive, Recompute, Task, at_least_one};
use crate::distributed::Group;
use crate::error::{Result, invalid};
use crate::memory::DeviceMemory;
use crate::optim::Commit;

/// Builds an [`AdaptiveTrainer`] or an [`AccumulatingTrainer`](super::AccumulatingTrainer); made by their `builder`.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::batch::Halving;
/// use candle_headroom::{AdaptiveTrainer, Sgd};
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let builder = AdaptiveTrainer::builder(Sgd::builder(vec![w]).build()?);
/// let trainer = builder.policy(Halving::builder().start(8).build()?).seed(7).build()?;
/// assert_eq!(trainer.micro_batch(100), 8);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct AdaptiveTrainerBuilder<O, T = AdaptiveTrainer<O>> {
    optimizer: O,
    buffers: Vec<Tensor>,
    reach: Reach,
    engine: Engine,
    evaluation: Engine,
    group: Option<Group>,
    exchange: Settings,
    checks_cuts: bool,
    /// Batches for one update of an accumulating trainer.
    batches: usize,
    finish: fn(AdaptiveTrainer<O>, usize) -> Result<T>,
}

impl<O: Commit> AdaptiveTrainer<O> {
    /// Trains the parameters of this optimizer.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?; // two samples
    /// trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// assert_eq!(w.to_vec1::<f32>()?, [2.]); // moved by 0.5 · 4
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(optimizer: O) -> AdaptiveTrainerBuilder<O> {
        AdaptiveTrainerBuilder::new(optimizer, 1, |trainer, _| Ok(trainer))
    }
}

impl<O: Commit, T> AdaptiveTrainerBuilder<O, T> {
    pub(super) fn new(
        optimizer: O,
        batches: usize,
        finish: fn(AdaptiveTrainer<O>, usize) -> Result<T>,
    ) -> Self {
        Self {
            optimizer,
            buffers: Vec::new(),
            reach: Reach::default(),
            engine: Engine::new(Predictive::default(), Task::Training),
            evaluation: Engine::new(Predictive::default(), Task::Evaluation),
            group: None,
            exchange: Settings {
                compare_every: 1000,
                measured: None,
            },
            checks_cuts: true,
            batches,
            finish,
        }
    }

    /// Trains together with the other ranks of this group: each gives its part of a batch to [`step`](AdaptiveTrainer::step), of any size, also
    /// 0, and all apply one update, with the weighted mean over the samples of all ranks. [`build`](Self::build) copies rank 0's parameters
    /// to all.
    ///
    /// Ranks meet once for each update. Between two updates each one cuts, retries and recomputes by itself, so memory that runs out on one rank
    /// costs the others only the time that they wait. If a rank cannot do its part, because of any error, no rank updates and each returns
    /// an error: its own, or [`PeerFailed`](crate::error::GroupError::PeerFailed). All ranks can then go on with the next batch.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?; // `mpirun -n 2 …`, or alone
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).group(&group).build()?;
    /// let report = trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// assert_eq!(report.exchange.is_some(), group.size() > 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "distributed")]
    pub fn group(mut self, group: &Group) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Sets the number of updates after which the ranks of a [group](Self::group) compare checksums of their parameters, at least 1; 1,000 by default. They also
    /// do so in the first update, and in the first one after state was loaded. It takes as long as a copy of all parameters to the host.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let build = |updates| {
    ///     let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    ///     AdaptiveTrainer::builder(optimizer).group(&group).compare_every(updates).build()
    /// };
    /// assert!(build(100).is_ok());
    /// assert!(build(0).is_err_and(|error| error.is_policy()));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "distributed")]
    pub fn compare_every(mut self, updates: u64) -> Self {
        self.exchange.compare_every = updates;
        self
    }

    /// Divides the batches of a [`Loader`](crate::data::Loader) among the ranks of a [group](Self::group) in proportion to their speeds, so that
    /// a slower GPU has fewer samples and none waits long for another. Without it, parts are equal.
    ///
    /// The ranks are measured in the first `updates` [steps](AdaptiveTrainer::step) in which each has samples and none runs out of memory. The
    /// median counts, so a slow first step makes no difference from 3 updates on. Then the parts change once and stay. Speeds that differ by
    /// less than 5 % count as equal. What loaders have read ahead is read again, and a batch that the caller took before keeps its parts, so
    /// all ranks have to take each batch between the same steps. Each update compares that.
    ///
    /// The parts belong to the loader's position. A resumed run goes on with them and measures nothing, unless it has another number of ranks.
    /// Every division gives the same update within rounding. Two runs that measure are not equal bit by bit, because times are not.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let build = |updates| {
    ///     let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    ///     AdaptiveTrainer::builder(optimizer).group(&group).measured_shares(updates).build()
    /// };
    /// assert!(build(5).is_ok()); // the median of five updates
    /// assert!(build(0).is_err_and(|error| error.is_policy()));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "distributed")]
    pub fn measured_shares(mut self, updates: usize) -> Self {
        self.exchange.measured = Some(updates);
        self
    }

    /// Follows this memory's limit, and completes reports and errors with its numbers. Without it a trainer reacts to allocations that fail,
    /// and sizes are not predicted.
    ///
    /// ```
    /// use candle_core::{DType, Tensor};
    /// use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};
    /// use candle_nn::{Module, VarBuilder, VarMap, linear};
    ///
    /// let memory = DeviceMemory::host().open()?; // or `cuda(0)`, with a limit
    /// let varmap = VarMap::new();
    /// let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, memory.device()))?;
    /// let optimizer = AdamW::builder(&varmap).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).memory(&memory).build()?;
    /// let batch = Tensor::ones((8, 4), DType::F32, memory.device())?;
    /// let report = trainer.step(&batch, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
    /// assert_eq!(report.peak.is_some(), memory.in_use().is_some()); // with a tracking allocator
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.engine.memory = Some(memory.clone());
        self.evaluation.memory = Some(memory.clone());
        self
    }

    /// Cuts batches by this policy. The default of an [`AdaptiveTrainer`] is [`Predictive`].
    ///
    /// | policy | size of a micro-batch |
    /// |---|---|
    /// | [`Predictive`] | what a model of memory predicts to fit; halved when it does not |
    /// | [`Halving`](crate::batch::Halving) | halved when memory runs out, and grown again |
    /// | [`Fixed`](crate::batch::Fixed) | always the same; memory that runs out is an error |
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::batch::Fixed;
    ///
    /// let trainer = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(16)?).build()?;
    /// assert_eq!(trainer.micro_batch(100), 16);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn policy(mut self, policy: impl Into<Box<dyn BatchPolicy>>) -> Self {
        self.engine.policy = policy.into();
        self
    }

    /// Cuts [evaluation](AdaptiveTrainer::evaluate) data, of which more fits, by this policy; a [`Predictive`] by default.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::batch::Fixed;
    ///
    /// let builder = AdaptiveTrainer::builder(optimizer).evaluation_policy(Fixed::new(32)?);
    /// let mut trainer = builder.build()?;
    /// let data = Tensor::arange(0f32, 100., &Device::Cpu)?;
    /// let chunks = trainer.evaluate(&data, |x, _| x.dim(0))?;
    /// assert_eq!(chunks.results, [32, 32, 32, 4]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn evaluation_policy(mut self, policy: impl Into<Box<dyn BatchPolicy>>) -> Self {
        self.evaluation.policy = policy.into();
        self
    }

    /// Adds variables that the forward pass changes by itself: a micro-batch that fails or panics leaves no trace in them.
    ///
    /// BatchNorm's running statistics need no mention where the optimizer has them: its builder was given the `VarMap`, or names that
    /// end with `running_mean`, `running_var` or `num_batches_tracked`. Name them where it has not
    /// (`[norm.running_mean(), norm.running_var()]`).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::batch::Halving;
    ///
    /// let seen = Var::new(0f32, &Device::Cpu)?; // counts samples in the forward pass
    /// let builder = AdaptiveTrainer::builder(optimizer).policy(Halving::default());
    /// let mut trainer = builder.buffers([seen.as_tensor()]).build()?;
    /// let x = Tensor::arange(0f32, 8., &Device::Cpu)?;
    /// let report = trainer.step(&x, |x, _| {
    ///     seen.set(&(seen.as_tensor() + x.dim(0)? as f64)?)?;
    ///     if x.dim(0)? > 4 {
    ///         candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY") // as on a device with room for 4 samples
    ///     }
    ///     x.broadcast_sub(&w)?.sqr()?.mean_all()
    /// })?;
    /// assert_eq!((report.retries, seen.to_scalar::<f32>()?), (1, 8.)); // not 16
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn buffers<'a>(mut self, buffers: impl IntoIterator<Item = &'a Tensor>) -> Self {
        self.buffers.extend(buffers.into_iter().cloned());
        self
    }

    /// Allows these parameters to receive no gradient. By default the first update fails with
    /// [`UnreachedParameters`](crate::error::UnreachedParameters) if a trainable parameter received none.
    ///
    /// A name matches the parameter of that name, and `*` stands for any text, dots included: `pooler.*`, `*.bias`,
    /// `layers.*.experts.*`, and `*` for all, which turns the check off. A Var without a name has its place in the optimizer's
    /// list, as in `3`. Names of frozen parameters count. Several calls add up.
    ///
    /// BatchNorm's running statistics (`running_mean`, `running_var` and `num_batches_tracked` at the end of a name) and
    /// [named buffers](Self::buffers) need no mention. Neither do frozen parameters, which are checked in their first update after
    /// they were thawed. A gradient of zeros, or one that is not finite, counts as received.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::{AdamW, AdaptiveTrainer};
    /// use candle_nn::{Module, VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let model = linear(4, 2, vb.pp("model"))?;
    /// linear(4, 4, vb.pp("pooler"))?; // this training does not use it
    /// let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
    /// let builder = AdaptiveTrainer::builder(optimizer).allow_unreached(["pooler.*"]);
    /// let mut trainer = builder.build()?;
    /// trainer.step(&Tensor::ones((8, 4), DType::F32, &Device::Cpu)?, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
    /// assert_eq!(trainer.unreached().len(), 2); // the pooler's weight and bias
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn allow_unreached(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.reach = self.reach.allow(names);
        self
    }

    /// Sets the number of updates in which each parameter must receive a gradient at least once; 1 by default. For a mixture of
    /// experts, where a batch may not use every expert.
    ///
    /// The last of these updates fails with [`UnreachedParameters`](crate::error::UnreachedParameters); those before it are
    /// applied. Updates that the optimizer skips count, updates that fail do not. A thawed parameter counts
    /// from its own first update, and a resumed run goes on counting.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor, Var};
    /// use candle_headroom::{AdaptiveTrainer, Sgd};
    ///
    /// let (a, b) = (Var::new(&[1f32], &Device::Cpu)?, Var::new(&[1f32], &Device::Cpu)?);
    /// let optimizer = Sgd::builder(vec![a.clone(), b.clone()]).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).reach_within(2).build()?;
    /// let x = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    /// for expert in [&a, &b] {
    ///     // Each batch uses one of the two.
    ///     trainer.step(&x, |x, _| x.broadcast_mul(expert)?.sqr()?.mean_all())?;
    /// }
    /// assert!(trainer.unreached().is_empty());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn reach_within(mut self, updates: usize) -> Self {
        self.reach = self.reach.within(updates);
        self
    }

    /// Sets whether regions that the model marks with [`nn::recompute`](crate::nn::recompute()) are recomputed in the backward pass;
    /// [`Recompute::Auto`] by default. In evaluation, which has no backward pass, nothing of a region is kept.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// use candle_headroom::batch::Recompute;
    ///
    /// let builder = AdaptiveTrainer::builder(optimizer).recompute(Recompute::Always);
    /// let mut trainer = builder.build()?;
    /// let (_, recomputes) = trainer.step_with(&x, |x, micro| {
    ///     Ok((x.broadcast_sub(&w)?.sqr()?.mean_all()?, micro.recomputes))
    /// })?;
    /// assert_eq!(recomputes, [true]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.engine.recompute = recompute;
        self
    }

    /// Does not check whether the closure's loss depends on how batches are cut.
    ///
    /// By default, at the end of the first batch that was cut and before its update, the trainer calls the closure again
    /// with the first samples, at most 7 and no more than were computed at once: all together twice, then in two parts. If the gradients
    /// differ by more than rounding explains, the step fails with [`DependsOnCut`](crate::error::DependsOnCut),
    /// because micro-batches would train another function than whole batches. What was found is in
    /// [`StepReport::cut_check`](super::StepReport::cut_check). [`check_cut`](AdaptiveTrainer::check_cut) has the details.
    ///
    /// A loss that depends on the cut on purpose, such as one with negatives from the micro-batch, needs this.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// use candle_headroom::batch::Fixed;
    ///
    /// let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(2)?);
    /// let mut trainer = builder.unchecked_cuts().build()?;
    /// let x = Tensor::new(&[1f32, 3., 5., 7.], &Device::Cpu)?;
    /// // A sum in place of a mean: its gradient grows with the micro-batch.
    /// let report = trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.sum_all())?;
    /// assert!(report.cut_check().is_none());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn unchecked_cuts(mut self) -> Self {
        self.checks_cuts = false;
        self
    }

    /// Sets the seed from which [`MicroBatch::seed`](crate::MicroBatch::seed) is derived in steps; 0 by default. In evaluation it is always 0.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Result, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let draw = |seed| -> Result<Vec<u64>> {
    ///     let optimizer = Sgd::builder(vec![w.clone()]).build()?;
    ///     let mut trainer = AdaptiveTrainer::builder(optimizer).seed(seed).build()?;
    ///     let (_, seeds) = trainer.step_with(&x, |x, micro| {
    ///         Ok((x.broadcast_sub(&w)?.sqr()?.mean_all()?, micro.seed()))
    ///     })?;
    ///     Ok(seeds)
    /// };
    /// assert_eq!(draw(1)?, draw(1)?);
    /// assert_ne!(draw(1)?, draw(2)?);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.engine.seed = seed;
        self
    }

    /// Adds an observer, such as a [`Timeline`](crate::Timeline). Several calls add up. Observers are called in the trainer's thread, in order:
    /// one that takes long makes the step longer.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::{AdamW, AdaptiveTrainer, Timeline};
    /// use candle_nn::{VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let timeline = Timeline::new();
    /// let optimizer = AdamW::builder(&varmap).build()?;
    /// let trainer = AdaptiveTrainer::builder(optimizer).observer(timeline.clone()).build()?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        let observer: Arc<dyn Observer> = Arc::new(observer);
        self.engine.observers.push(Arc::clone(&observer));
        self.evaluation.observers.push(observer);
        self
    }

    /// Builds the trainer. The optimizer receives gradients whose memory is reused: it must copy what it keeps. By default the first
    /// update fails if a parameter received no gradient.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let builder = AdaptiveTrainer::builder(optimizer).allow_unreached(["pooler.*"]);
    /// let error = builder.build().unwrap_err(); // no parameter has such a name
    /// assert!(error.is_parameter());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`is_parameter`](crate::Error::is_parameter): no parameter to train, one listed twice, a type that cannot be accumulated, a buffer that is not a
    ///   variable, parameters on another device than the memory's, a name in [`allow_unreached`](Self::allow_unreached) that
    ///   matches no parameter, or [`reach_within(0)`](Self::reach_within);
    /// - an accumulating trainer of 0 batches, [`compare_every(0)`](Self::compare_every), or
    ///   [`measured_shares(0)`](Self::measured_shares) ([`is_policy`](crate::Error::is_policy));
    /// - with a group, [errors of it](crate::Error::is_group): different models or options, one GPU for two ranks, no engine for the device,
    ///   ranks that make other calls, [`PeerFailed`](crate::error::GroupError::PeerFailed), [`PeerLost`](crate::error::GroupError::PeerLost).
    pub fn build(mut self) -> Result<T> {
        let reach = self.reach.describe();
        // A rank that is misconfigured by itself fails here, and the others learn why when they join.
        let core = Core::new(self.optimizer, &self.buffers, self.reach);
        let mut core = core.and_then(|core| {
            at_least_one("`compare_every`", self.exchange.compare_every)?;
            at_least_one("`measured_shares`", self.exchange.measured.unwrap_or(1))?;
            let memory = self.engine.memory.as_ref();
            let memory = memory.map(|memory| memory.device().location());
            for var in core.accumulator.slots.vars() {
                let vars = var.device().location();
                if let Some(memory) = memory.filter(|memory| *memory != vars) {
                    return Err(invalid!(
                        Parameter,
                        "the Vars are on {vars:?}, not on {memory:?}: build the model on `memory.device()`"
                    ));
                }
            }
            Ok(core)
        });
        if let Some(group) = &self.group {
            let options = vec![
                reach,
                format!("the seed is {}", self.engine.seed),
                format!("an update has {} batches", self.batches),
                format!("an exchange has {:?}", self.exchange),
            ];
            core = join(core, group, options, self.exchange);
            self.engine.rank = group.rank_of_several();
            self.evaluation.rank = self.engine.rank;
        }
        let mut core = core?;
        core.checks = Checks::new(self.checks_cuts);
        if core.ranks.is_none() {
            core.shard()?;
        }
        let device = core.accumulator.device();
        self.engine.start(device.clone());
        self.evaluation.start(device);
        let trainer = AdaptiveTrainer {
            core,
            engine: self.engine,
            evaluation: self.evaluation,
        };
        (self.finish)(trainer, self.batches)
    }
}
