use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_nn::Optimizer;

use super::adjustment::{Adjustment, Progress};
use super::check;
use super::engine::Engine;
use super::managed::{Origin, Update};
use super::parameters::Parameters;
use crate::error::{OptimizerError, Phase, Result};
use crate::optim::{Algorithm, Committed, GroupOptions, Parameter};
use crate::testing;

/// An optimizer that updates each parameter in one pass, all parameters or none, and allocates nothing for it. Its aliases are
/// [`AdamW`](super::super::AdamW), [`Adam`](super::super::Adam), [`Sgd`](super::super::Sgd), [`Lion`](super::super::Lion) and
/// [`Adafactor`](super::super::Adafactor).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::AdamW;
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = AdamW::builder(vec![w.clone()]).learning_rate(0.05).build()?;
/// for _ in 0..10 {
///     optimizer.commit(&w.sqr()?.backward()?)?;
/// }
/// assert_eq!(optimizer.progress()?.steps, 10);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// It is a [`candle_nn::Optimizer`] too, so it replaces candle's in an existing loop by a change of the import. Only `build` allocates
/// state, and [`set_group`](Self::set_group) when it thaws a group. [`commit`](Self::commit) makes all checks before it changes the first
/// parameter. On CUDA the last of its few launches changes all parameters.
#[derive(Debug)]
pub struct Fused<A> {
    pub(super) algorithm: A,
    pub(super) groups: Vec<GroupOptions>,
    pub(super) parameters: Parameters,
    pub(super) adjustment: Adjustment,
    /// Whether a loss was scaled since the last update.
    pub(super) has_scaled: AtomicBool,
    pub(super) engine: Engine,
}

impl<A: Algorithm> Fused<A> {
    /// Applies one update with these gradients. With an error nothing has changed, and it may be called again. Parameters without a
    /// gradient stay as they are, and their step is not counted.
    ///
    /// It allocates nothing, on the host or on the device, and does not wait for the device. With clipping by norm, a loss scale or
    /// `skip_non_finite` on CUDA, the device decides whether a step is skipped. The answer is then [`Committed::Unknown`], and
    /// [`progress`](Self::progress) returns the counts.
    ///
    /// # Errors
    /// [`OptimizerError`] if a gradient does not fit its parameter, if [`set_learning_rate`](Optimizer::set_learning_rate) set a rate
    /// that is out of range, or, with a loss scale, if no loss went through [`scale_loss`](Self::scale_loss) since the last update;
    /// errors of launching on a device. The checks rule out [`UpdateInterrupted`](crate::error::UpdateInterrupted), which would mean that
    /// some parameters have changed.
    pub fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        if self.adjustment.loss_scale.is_some() && !self.has_scaled.load(Relaxed) {
            return Err(OptimizerError::Unscaled.into());
        }
        check::learning_rate(&self.algorithm, &self.groups)?;
        let parameters = &self.parameters;
        check::gradients(&parameters.updated, &parameters.memory, gradients)?;
        let committed = self.engine.commit(&Update {
            rule: &self.algorithm,
            groups: &self.groups,
            adjustment: &self.adjustment,
            parameters: &parameters.updated,
            gradients,
        })?;
        self.has_scaled.store(false, Relaxed);
        Ok(committed)
    }

    /// Returns the loss to differentiate: the loss times the loss scale, in f32 (f64 for f64), or the loss itself without a loss
    /// scale. Trainers and [`backward_step`](Optimizer::backward_step) call it.
    ///
    /// # Errors
    /// Errors from candle.
    pub fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        if self.adjustment.loss_scale.is_none() {
            return Ok(loss.clone());
        }
        let loss = match loss.dtype() {
            // A loss of 1 times the scale may be too much for f16.
            DType::F16 | DType::BF16 => loss.to_dtype(DType::F32)?,
            _ => loss.clone(),
        };
        let scaled = self.engine.scale(&loss)?;
        self.has_scaled.store(true, Relaxed);
        Ok(scaled)
    }

    /// Counts of steps, the loss scale and the last norm. On CUDA this waits for the device.
    ///
    /// # Errors
    /// Errors from reading the device.
    pub fn progress(&self) -> Result<Progress> {
        let counters = self.engine.counters()?;
        Ok(Progress {
            steps: counters.steps,
            skipped: counters.skipped,
            loss_scale: self.adjustment.loss_scale.map(|_| counters.scale),
            gradient_norm: counters.norm,
        })
    }

    /// The parameters that are not frozen, in the order in which they were given.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters.names
    }

    /// Bytes of the moments and master weights, counted from their shapes and types.
    pub fn state_bytes(&self) -> u64 {
        let updated = self.parameters.updated.iter();
        updated.map(|p| p.kept_bytes() + p.master_bytes()).sum()
    }

    /// The hyper-parameters.
    pub fn params(&self) -> &A {
        &self.algorithm
    }

    /// Sets the hyper-parameters.
    ///
    /// # Errors
    /// [`OptimizerError`] if one is out of its range, or if they need other state than there is (momentum where there was none).
    pub fn set_params(&mut self, params: A) -> Result<()> {
        check::rule(&params)?;
        if !self.keeps_state_of(&params) {
            let kept = self.parameters.all.iter().flat_map(|p| &p.kept);
            let names: BTreeSet<_> = kept.map(|(kept, _)| kept.name).collect();
            let kept = match names.is_empty() {
                true => "nothing".to_owned(),
                false => Vec::from_iter(names).join(" and "),
            };
            let optimizer = A::NAME;
            return Err(OptimizerError::Kept { optimizer, kept }.into());
        }
        self.algorithm = params;
        Ok(())
    }

    pub(super) fn keeps_state_of(&self, params: &A) -> bool {
        self.parameters.all.iter().all(|parameter| {
            let kept = parameter.kept.iter().map(|(kept, _)| kept);
            kept.eq(&params.state(parameter.var.dims()))
        })
    }

    /// The options of all groups, in the order in which they were given.
    pub fn groups(&self) -> &[GroupOptions] {
        &self.groups
    }

    /// The options of a group.
    ///
    /// # Errors
    /// [`OptimizerError::Group`] if there is no group with this index.
    pub fn group(&self, index: usize) -> Result<GroupOptions> {
        let (group, groups) = (index, self.groups.len());
        let options = self.groups.get(index).copied();
        options.ok_or_else(|| OptimizerError::Group { group, groups }.into())
    }

    /// Sets the options of a group.
    ///
    /// Freezing a group drops its moments and master weights. Thawing it allocates new ones, and its steps count from 0 again, as for
    /// parameters that are new to an optimizer in PyTorch. To keep the moments, set `learning_rate_factor` to 0 instead. On CUDA
    /// freezing and thawing wait for the device.
    ///
    /// # Errors
    /// [`OptimizerError`] if there is no such group or a number is out of its range, and
    /// [`ResourceExhausted`](crate::error::ResourceExhausted) if there is no memory for the state of a thawed group. Nothing has
    /// changed then.
    pub fn set_group(&mut self, index: usize, options: GroupOptions) -> Result<()> {
        check::group::<A>(&options)?;
        let is_same = self.group(index)?.frozen == options.frozen;
        let mut groups = self.groups.clone();
        if let Some(group) = groups.get_mut(index) {
            *group = options;
        }
        if !is_same {
            let updated = self.parameters.without_frozen(&groups);
            let origins = self.parameters.origins(&updated);
            for _ in origins.iter().filter(|o| matches!(o, Origin::Fresh)) {
                testing::inject(Phase::Optimizer)?;
            }
            (self.engine).set_up(&self.algorithm, &updated, origins, None)?;
            self.parameters.set_updated(updated);
        }
        self.groups = groups;
        Ok(())
    }
}

/// For loops that are written for candle's optimizers. A [`step`](Self::step) that fails has changed nothing.
impl<A: Algorithm> Optimizer for Fused<A> {
    type Config = A;

    fn new(vars: Vec<candle_core::Var>, params: A) -> candle_core::Result<Self> {
        Ok(Self::builder(vars).params(params).build()?)
    }

    fn step(&mut self, gradients: &GradStore) -> candle_core::Result<()> {
        self.commit(gradients)?;
        Ok(())
    }

    /// Scales the loss by the loss scale before it differentiates it.
    fn backward_step(&mut self, loss: &Tensor) -> candle_core::Result<()> {
        let gradients = self.scale_loss(loss)?.backward()?;
        self.step(&gradients)
    }

    fn learning_rate(&self) -> f64 {
        self.algorithm.learning_rate()
    }

    /// The next [`step`](Self::step) refuses a rate that is negative or not finite: candle's signature has no error.
    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.algorithm.set_learning_rate(learning_rate);
    }
}
