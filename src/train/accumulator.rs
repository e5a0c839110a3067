//! [`GradientAccumulator`]: what both trainers accumulate into, and an update of it.
//!
//! Three rules keep a failure harmless. What may run out of memory comes before anything is changed; the optimizer counts as interrupted from the
//! moment it is called until it has returned; and gradients that may hold a part of a micro-batch are dropped as a whole.

use candle_core::Device;
use candle_core::backprop::GradStore;

use super::buffers::Reach;
use super::loss::Loss;
use super::report::{Recent, StepReport};
use super::slots::{Contribution, Slots};
use crate::batch::run_phase;
use crate::error::{Error, Phase, Result, UpdateInterrupted, WindowLost, invalid};
use crate::optim::{Commit, Committed, Parameter};
use crate::regions::backward;
use crate::testing;

/// Accumulates the gradients of several micro-batches into one update, in a loop of your own.
///
/// It owns the optimizer: the gradients are those of the optimizer's parameters, and losses are multiplied by its loss scale.
/// Each parameter has one buffer, allocated with its first gradient, for the weighted mean of its gradients; f32 for f16 and
/// bf16 parameters. Micro-batches may differ in size. The graph, the loss and all other gradients are dropped before adding.
///
/// The forward pass is yours, so what it changes is not rolled back: if you repeat a micro-batch that failed, BatchNorm's running
/// statistics count its samples twice unless you restore them. An [`AdaptiveTrainer`](super::AdaptiveTrainer) restores them.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdamW, GradientAccumulator};
/// use candle_nn::{linear, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
/// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
///
/// for i in 0..10 {
///     let x = Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?; // [samples, features]
///     accumulator.add(model.forward(&x)?.sqr()?.mean_all()?, 8)?;
///     if (i + 1) % 4 == 0 {
///         accumulator.update()?; // one update from 32 samples
///     }
/// }
/// let rest = accumulator.update()?.expect("two micro-batches are left");
/// assert_eq!(rest.samples, 16);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct GradientAccumulator<O> {
    pub(super) optimizer: O,
    pub(super) slots: Slots,
    /// The report of the next update, as far as it is known.
    pub(super) window: StepReport,
    /// Number of updates.
    pub(super) updates: u64,
    /// Number of a trainer's batches in these updates. It grows with an update alone, so what is dropped before counts as not read.
    pub(super) batches: u64,
    /// An update failed half-way: parameters and optimizer state may not belong together.
    pub(super) is_interrupted: bool,
    pub(super) loading: Loading,
    pub(super) recent: Recent,
}

/// Whether a checkpoint was loaded into a trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loading {
    Never,
    /// Its parameters are being replaced, without a copy of what they were.
    Begun,
    Done,
}

impl<O: Commit> GradientAccumulator<O> {
    /// Differentiates the loss of `samples` samples, drops it with its graph and activations, and adds its gradients.
    ///
    /// A plain tensor is the mean over the samples and counts with their number. For a mean over tokens give a
    /// [`Loss::weighted_mean`]: `samples` is then for the report alone.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// for x in [[1f32, 3.], [5., 7.]] {
    ///     let x = Tensor::new(&x, &Device::Cpu)?; // two samples
    ///     accumulator.add(x.broadcast_sub(&w)?.sqr()?.mean_all()?, 2)?;
    /// }
    /// assert_eq!(accumulator.samples(), 4);
    /// accumulator.update()?;
    /// assert_eq!(w.to_vec1::<f32>()?, [4.]); // the mean of all four
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// - a loss that cannot be used ([`is_loss`](Error::is_loss)), and any error of the backward pass: nothing was added;
    /// - [`WindowLost`](crate::error::WindowLost) if adding failed half-way, so that the gradients accumulated before are lost too.
    pub fn add(&mut self, loss: impl Into<Loss>, samples: usize) -> Result<()> {
        self.begin()?;
        let differentiate = || self.differentiate(loss.into(), samples, 1.);
        let contribution = run_phase(Phase::Backward, None, differentiate)?;
        run_phase(Phase::Accumulate, None, || self.accumulate(contribution))
    }

    /// Updates the parameters with the gradients accumulated since the last update. Returns `None` if nothing was added, or
    /// all of it had weight 0.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.5).build()?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// assert!(accumulator.update()?.is_none()); // nothing was added
    /// accumulator.add(x.broadcast_sub(&w)?.sqr()?.mean_all()?, 2)?;
    /// let report = accumulator.update()?.expect("one micro-batch");
    /// assert_eq!((report.step, report.samples, report.updated), (1, 2, Some(true)));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`UnreachedParameters`](crate::error::UnreachedParameters) in the first update, or in a later one that
    ///   [`reach_within`](super::GradientAccumulatorBuilder::reach_within) sets, if a parameter received no gradient. Everything is
    ///   left as it was, the accumulated gradients included: `update` succeeds once more micro-batches have reached what is
    ///   missing;
    /// - an [error of the loss](Error::is_loss) if no parameter received a gradient, and any error that left everything as it was: `update` can be
    ///   called again;
    /// - [`UpdateInterrupted`] from an optimizer that is not atomic, or after it panicked. The accumulated gradients are dropped, so that they are
    ///   not applied twice, and everything else fails, saving too, until state is [loaded](super::Resumable::load_state) or the
    ///   [optimizer replaced](Self::replace_optimizer).
    pub fn update(&mut self) -> Result<Option<StepReport>> {
        let report = self.commit(O::commit)?;
        report.note_loss();
        Ok(Some(report).filter(|report| report.loss.weight() > 0.))
    }

    /// Updates as [`update`](Self::update) by this function of the optimizer, and also reports what had no weight.
    pub(super) fn commit(
        &mut self,
        commit: impl FnOnce(&mut O, &GradStore) -> Result<Committed>,
    ) -> Result<StepReport> {
        self.refuse_if_interrupted()?;
        let (mut updated, mut gradient_norm) = (Some(false), None);
        if self.window.loss.weight() > 0. {
            self.slots.check_reached(|_, slot| slot.is_filled)?;
            let takes_f32 = self.optimizer.takes_f32();
            let gradients = run_phase(Phase::Optimizer, None, || {
                testing::inject(Phase::Optimizer)?;
                self.slots.gradients(takes_f32)
            })?;
            // Until it returns, because a panic may leave some parameters updated.
            self.is_interrupted = true;
            let committed = commit(&mut self.optimizer, &gradients);
            updated = match committed {
                Ok(Committed::Applied) => Some(true),
                Ok(Committed::Skipped) => Some(false),
                Ok(Committed::Unknown) => None,
                Err(error @ (Error::UpdateInterrupted(_) | Error::DeviceFault(_))) => {
                    self.reset();
                    return Err(error);
                }
                Err(error) => {
                    self.is_interrupted = false;
                    return Err(error.in_phase(Phase::Optimizer));
                }
            };
            self.is_interrupted = false;
            gradient_norm = self.optimizer.gradient_norm();
            self.updates += 1;
            self.slots.count_update();
        }
        self.slots.reset();
        let mut report = std::mem::take(&mut self.window);
        self.batches += report.batches as u64;
        (report.step, report.updated) = (self.updates, updated);
        report.learning_rate = self.optimizer.learning_rate();
        report.gradient_norm = gradient_norm;
        report.recent = self.recent.clone();
        Ok(report)
    }

    /// Drops the accumulated gradients, and returns the number of their samples. Parameters and optimizer stay as they are.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut accumulator = GradientAccumulator::builder(Sgd::builder(&varmap).build()?).build()?;
    /// let x = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
    /// accumulator.add(model.forward(&x)?.sqr()?.mean_all()?, 8)?;
    /// assert_eq!(accumulator.reset(), 8);
    /// assert!(accumulator.update()?.is_none());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn reset(&mut self) -> usize {
        self.slots.reset();
        std::mem::take(&mut self.window).samples
    }

    /// Returns the number of samples added since the last update.
    pub fn samples(&self) -> usize {
        self.window.samples
    }

    /// Returns the mean gradients so far, in the parameters' types and shapes. They share the buffers' memory (f16 and bf16
    /// are converted), so they change with the next [`add`](Self::add). With a loss scale they are multiplied by it.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let mut accumulator = GradientAccumulator::builder(Sgd::builder(&varmap).build()?).build()?;
    /// let x = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
    /// accumulator.add(model.forward(&x)?.sqr()?.mean_all()?, 8)?;
    /// let gradients = accumulator.gradients()?;
    /// for var in varmap.all_vars() {
    ///     let gradient = gradients.get(&var).expect("the loss reaches it");
    ///     assert_eq!(gradient.dims(), var.dims());
    /// }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// An [error of the loss](Error::is_loss) if no parameter has a gradient, or candle's.
    pub fn gradients(&self) -> Result<GradStore> {
        self.slots.gradients(false)
    }

    /// Returns the parameters that have never received a gradient: the loss does not depend on them, or an operation
    /// without a backward pass, such as `softmax_last_dim` or a fused layer norm, cuts them off. BatchNorm's statistics and
    /// those that [`allow_unreached`](super::GradientAccumulatorBuilder::allow_unreached) names are among them.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{GradientAccumulator, Sgd};
    ///
    /// let (w, idle) = (Var::new(&[0f32], &Device::Cpu)?, Var::new(&[0f32], &Device::Cpu)?);
    /// let optimizer = Sgd::builder(vec![("w", w.clone()), ("idle", idle)]).build()?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// accumulator.add(x.broadcast_sub(&w)?.sqr()?.mean_all()?, 2)?;
    /// assert_eq!(accumulator.unreached()[0].name, "idle");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn unreached(&self) -> Vec<Parameter> {
        let unreached = self.slots.slots.iter().filter(|slot| !slot.is_reached);
        unreached.map(|slot| slot.parameter.clone()).collect()
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// Returns the optimizer, for example to set its learning rate, which counts from the next update on. Gradients that are accumulated
    /// stay: they do not depend on the optimizer.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w]).learning_rate(0.5).build()?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// accumulator.optimizer_mut().set_learning_rate(0.25);
    /// assert_eq!(accumulator.optimizer().learning_rate(), 0.25);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Continues with another optimizer and returns the previous one. Accumulated gradients are dropped. After an
    /// interrupted update, restore the parameters first; [`load_state`](super::Resumable::load_state) keeps the optimizer, with its saved
    /// state.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// let sgd = |rate| Sgd::builder(vec![w.clone()]).learning_rate(rate).build();
    /// let mut accumulator = GradientAccumulator::builder(sgd(0.5)?).build()?;
    /// accumulator.add(x.broadcast_sub(&w)?.sqr()?.mean_all()?, 2)?;
    /// let before = accumulator.replace_optimizer(sgd(0.25)?);
    /// assert_eq!((before.learning_rate(), accumulator.samples()), (0.5, 0));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.reset();
        (self.is_interrupted, self.loading) = (false, Loading::Done);
        std::mem::replace(&mut self.optimizer, optimizer)
    }

    /// Returns the optimizer and drops the buffers.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w]).learning_rate(0.5).build()?;
    /// let accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// assert_eq!(accumulator.into_optimizer().learning_rate(), 0.5);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn into_optimizer(self) -> O {
        self.optimizer
    }

    /// Where the parameters lie.
    pub(super) fn device(&self) -> Device {
        let first = self.slots.vars().next();
        first.map_or(Device::Cpu, |var| var.device().clone())
    }

    /// Prepares for the next micro-batch.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.refuse_if_interrupted()?;
        match self.window.samples {
            0 => self.slots.follow(self.optimizer.parameters()),
            _ => Ok(()),
        }
    }

    pub(super) fn refuse_if_interrupted(&self) -> Result<()> {
        if self.loading == Loading::Begun {
            let reason = invalid!(Checkpoint, "a checkpoint was loaded in part");
            return Err(UpdateInterrupted::new(reason).into());
        }
        match self.is_interrupted {
            true => Err(UpdateInterrupted::new(None).into()),
            false => Ok(()),
        }
    }

    /// Runs the backward pass of the scaled loss, also multiplied by `times`. The graph and all gradients of others are dropped.
    pub(super) fn differentiate(
        &self,
        loss: Loss,
        samples: usize,
        times: f64,
    ) -> Result<Contribution> {
        let loss = loss.weighted(samples)?;
        let mut gradients = Vec::new();
        if loss.weight > 0. {
            testing::inject(Phase::Backward)?;
            let mut scaled = self.optimizer.scale_loss(&loss.value)?;
            if times != 1. {
                scaled = (scaled * times)?;
            }
            let mut store = backward(&scaled)?;
            // A gradient may refer to the graph that it was computed from and keep the activations alive: detach it.
            let own = self.slots.vars().map(|var| store.remove(var));
            gradients = own.map(|gradient| Some(gradient?.detach())).collect();
        }
        Ok((loss.alone()?, gradients))
    }

    /// Adds gradients: first everything that can run out of memory, then the means in place. With W the weight so far and w the
    /// new one, a mean becomes `mean · W/(W+w) + gradient · factor/(W+w)`.
    pub(super) fn accumulate(&mut self, (loss, gradients): Contribution) -> Result<()> {
        testing::inject(Phase::Accumulate)?;
        self.slots.prepare(&gradients)?;
        if loss.weight > 0. {
            let before = self.window.loss.weight();
            let total = before + loss.weight;
            let (keep, add) = (before / total, loss.factor / total);
            if let Err((has_changed, reason)) = self.slots.blend(keep, add, gradients) {
                let lost = if has_changed { self.reset() } else { 0 };
                return Err(WindowLost::with(lost, reason));
            }
            self.window.loss.push(&loss);
        }
        self.window.samples = self.window.samples.saturating_add(loss.samples);
        self.window.sizes.push(loss.samples);
        Ok(())
    }
}

/// Builds a [`GradientAccumulator`]; made by [`GradientAccumulator::builder`].
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{GradientAccumulator, Sgd};
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let builder = GradientAccumulator::builder(Sgd::builder(vec![w]).build()?);
/// let accumulator = builder.reach_within(20).build()?;
/// assert_eq!(accumulator.samples(), 0);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct GradientAccumulatorBuilder<O> {
    pub(super) optimizer: O,
    pub(super) reach: Reach,
}

impl<O: Commit> GradientAccumulatorBuilder<O> {
    /// Allows these parameters to receive no gradient; see
    /// [`AdaptiveTrainerBuilder::allow_unreached`](super::AdaptiveTrainerBuilder::allow_unreached).
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{GradientAccumulator, Sgd};
    ///
    /// let (w, idle) = (Var::new(&[0f32], &Device::Cpu)?, Var::new(&[0f32], &Device::Cpu)?);
    /// let optimizer = Sgd::builder(vec![("w", w.clone()), ("pooler.bias", idle)]).build()?;
    /// let builder = GradientAccumulator::builder(optimizer).allow_unreached(["pooler.*"]);
    /// let mut accumulator = builder.build()?;
    /// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// accumulator.add(x.broadcast_sub(&w)?.sqr()?.mean_all()?, 2)?;
    /// assert!(accumulator.update()?.is_some());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn allow_unreached(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.reach = self.reach.allow(names);
        self
    }

    /// Sets the number of updates in which each parameter must receive a gradient, 1 by default; see
    /// [`AdaptiveTrainerBuilder::reach_within`](super::AdaptiveTrainerBuilder::reach_within).
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom::{GradientAccumulator, Sgd};
    ///
    /// let (a, b) = (Var::new(&[1f32], &Device::Cpu)?, Var::new(&[1f32], &Device::Cpu)?);
    /// let optimizer = Sgd::builder(vec![a.clone(), b.clone()]).build()?;
    /// let mut accumulator = GradientAccumulator::builder(optimizer).reach_within(2).build()?;
    /// for expert in [&a, &b] {
    ///     accumulator.add(expert.sqr()?.mean_all()?, 1)?; // each update reaches one of the two
    ///     accumulator.update()?;
    /// }
    /// assert!(accumulator.unreached().is_empty());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn reach_within(mut self, updates: usize) -> Self {
        self.reach = self.reach.within(updates);
        self
    }

    /// Builds the accumulator. By default its first update fails if a parameter received no gradient.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// # use candle_headroom::{GradientAccumulator, Sgd};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = Sgd::builder(vec![w]).build()?;
    /// let error = GradientAccumulator::builder(optimizer).reach_within(0).build().unwrap_err();
    /// assert!(error.is_parameter());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the optimizer has no parameter to train, has one twice, or has one of a floating-point type other than f64, f32, f16 and bf16; if a
    /// name in [`allow_unreached`](Self::allow_unreached) matches no parameter, or [`reach_within`](Self::reach_within) is 0
    /// ([`is_parameter`](crate::Error::is_parameter)).
    pub fn build(self) -> Result<GradientAccumulator<O>> {
        self.reach.check(&self.optimizer)?;
        let mut slots = Slots {
            reach: self.reach,
            ..Slots::default()
        };
        slots.follow(self.optimizer.parameters())?;
        Ok(GradientAccumulator {
            optimizer: self.optimizer,
            slots,
            window: StepReport::default(),
            updates: 0,
            batches: 0,
            is_interrupted: false,
            loading: Loading::Never,
            recent: Recent::default(),
        })
    }
}

impl<O: Commit> GradientAccumulator<O> {
    /// Accumulates gradients for this optimizer.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::{AdamW, GradientAccumulator};
    ///
    /// let w = Var::new(&[0f32], &Device::Cpu)?;
    /// let optimizer = AdamW::builder(vec![("w", w)]).learning_rate(1e-3).build()?;
    /// let accumulator = GradientAccumulator::builder(optimizer).build()?;
    /// assert_eq!(accumulator.unreached()[0].name, "w"); // no gradient so far
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(optimizer: O) -> GradientAccumulatorBuilder<O> {
        GradientAccumulatorBuilder {
            optimizer,
            reach: Reach::default(),
        }
    }
}
