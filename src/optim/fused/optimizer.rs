use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_nn::Optimizer;

use super::adjustment::Progress;
use super::engine::{Engine, Loaded};
use super::host_update::HostUpdates;
use super::managed::Managed;
use super::setup::Setup;
use crate::error::{OptimizerError, Result};
use crate::optim::{Algorithm, Committed, GroupOptions, Parameter};

/// An optimizer that updates each parameter in one pass, all or none, without allocations. Aliases: [`AdamW`](crate::optim::AdamW),
/// [`Adam`](crate::optim::Adam), [`Sgd`](crate::optim::Sgd), [`Lion`](crate::optim::Lion), [`Adafactor`](crate::optim::Adafactor).
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
    pub(super) setup: Setup<A>,
    /// The parameters that are not frozen.
    pub(super) names: Vec<Parameter>,
    /// Whether a loss was scaled since the last update.
    pub(super) has_scaled: AtomicBool,
    pub(super) engine: Box<dyn Engine<A>>,
    /// The pieces that were measured last.
    pub(super) measured: Option<Setup<A>>,
}

impl<A: Algorithm> Fused<A> {
    /// Applies one update with these gradients. With an error nothing has changed, and it may be called again. Parameters without a
    /// gradient stay as they are, and their step is not counted.
    ///
    /// It allocates nothing, on the host or on the device, and does not wait, except for moments on the host with another
    /// [`HostUpdate`](super::HostUpdate) than `Device`. With clipping by norm, a loss scale or `skip_non_finite`
    /// on CUDA, the device decides whether to skip a step: [`Committed::Unknown`]. [`progress`](Self::progress) has the counts.
    ///
    /// # Errors
    /// [`OptimizerError`] if a gradient does not fit its parameter, if [`set_learning_rate`](Optimizer::set_learning_rate) set a rate
    /// that is out of range, or, with a loss scale, if no loss went through [`scale_loss`](Self::scale_loss) since the last update;
    /// errors of launching on a device. [`UpdateInterrupted`](crate::error::UpdateInterrupted), which would mean that some parameters
    /// have changed, is ruled out by these checks, short of a panic in a thread of the update. A sharded optimizer may need
    /// [`commit_measured`](Self::commit_measured) instead ([`OptimizerError::Unmeasured`]).
    pub fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        self.apply(gradients, None)
    }

    /// Returns the loss to differentiate: the loss times the loss scale, in f32 (f64 for f64), or the loss itself without a loss
    /// scale. Trainers and [`backward_step`](Optimizer::backward_step) call it.
    ///
    /// # Errors
    /// Errors from candle.
    pub fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        if self.setup.adjustment.loss_scale.is_none() {
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
        self.engine.progress()
    }

    /// The parameters that are not frozen, in the order in which they were given.
    pub fn parameters(&self) -> &[Parameter] {
        &self.names
    }

    /// Bytes of the moments and master weights on the parameters' device, counted from their shapes and types.
    pub fn state_bytes(&self) -> u64 {
        self.setup.updated_pieces().map(Managed::kept_bytes).sum()
    }

    /// Bytes of the moments and master weights that [`moments_on_host`](super::FusedBuilder::moments_on_host) has put into host memory;
    /// 0 for CPU parameters, all of whose state is in [`state_bytes`](Self::state_bytes).
    pub fn host_state_bytes(&self) -> u64 {
        self.setup.updated_pieces().map(Managed::host_bytes).sum()
    }

    /// What updates the moments in host memory, with the times by which it was chosen; `None` if there are none.
    pub fn host_update(&self) -> Option<HostUpdates> {
        self.engine.host_update()
    }

    /// The hyper-parameters.
    pub fn params(&self) -> &A {
        &self.setup.rule
    }

    /// Sets the hyper-parameters.
    ///
    /// # Errors
    /// [`OptimizerError`] if one is out of its range, or if they need other state than there is (momentum where there was none).
    pub fn set_params(&mut self, mut params: A) -> Result<()> {
        params.check()?;
        if !self.setup.keeps_state_of(&params) {
            let kept = self.setup.parameters.iter().flat_map(Managed::by_rule);
            let names: BTreeSet<_> = kept.map(|held| held.kept.name).collect();
            let kept = match names.is_empty() {
                true => "nothing".to_owned(),
                false => Vec::from_iter(names).join(" and "),
            };
            let optimizer = A::NAME;
            return Err(OptimizerError::Kept { optimizer, kept }.into());
        }
        self.setup.rule = params;
        Ok(())
    }

    /// The options of all groups, in the order in which they were given.
    pub fn groups(&self) -> &[GroupOptions] {
        &self.setup.groups
    }

    /// Sets the options of a group.
    ///
    /// Freezing a group drops its moments and master weights. Thawing it allocates new ones, and its steps count from 0, as for new
    /// parameters in PyTorch. To keep the moments, set `learning_rate_factor` to 0 instead. On CUDA both wait for the device.
    ///
    /// # Errors
    /// [`OptimizerError`] if there is no such group, a number is out of its range or the options are not for the type of a thawed
    /// parameter, and [`ResourceExhausted`](crate::error::ResourceExhausted) without memory for a thawed group's state. Nothing has changed then.
    pub fn set_group(&mut self, index: usize, options: GroupOptions) -> Result<()> {
        options.check(A::NAME)?;
        let groups = self.setup.groups.len();
        let Some(group) = self.setup.groups.get_mut(index) else {
            let group = index;
            return Err(OptimizerError::Group { group, groups }.into());
        };
        if group.frozen == options.frozen {
            *group = options;
            return Ok(());
        }
        let mut setup = self.setup.clone();
        if let Some(group) = setup.groups.get_mut(index) {
            *group = options;
        }
        self.set_up(setup, None)
    }

    /// With an error nothing has changed.
    pub(super) fn set_up(&mut self, setup: Setup<A>, loaded: Option<&Loaded>) -> Result<()> {
        setup.check_options()?;
        self.engine.set_up(&setup, loaded)?;
        self.names = setup.names();
        self.setup = setup;
        self.measured = None;
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
        self.setup.rule.numbers()[0]
    }

    /// The next [`step`](Self::step) refuses a rate that is negative or not finite: candle's signature has no error.
    fn set_learning_rate(&mut self, learning_rate: f64) {
        if let Some((_, _, value)) = self.setup.rule.hyper_parameters().next() {
            value.set(learning_rate);
        }
    }
}
