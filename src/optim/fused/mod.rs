//! The optimizer [`Fused`], but for what depends on the device.

mod adjustment;
mod builder;
mod commit;
mod engine;
mod managed;
mod reader;
mod setup;

use std::sync::atomic::AtomicBool;

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_nn::Optimizer;

pub use adjustment::{LossScale, Progress};
pub use builder::FusedBuilder;
#[cfg(feature = "cuda")]
pub use engine::kept_tensor;
pub use engine::{Engine, Loaded, Snapshot, misplaced, states};
pub use managed::{Halves, Held, Managed, check_shape};
pub use setup::Setup;

use super::coded::Form;
use super::{Algorithm, Commit, GroupOptions, Moments, Parameter};
use crate::error::{Remedy, Result, invalid};
use crate::regions::backward;

/// An optimizer that updates each parameter in one pass, all or none, without allocations. Aliases: [`AdamW`](crate::optim::AdamW),
/// [`Adam`](crate::optim::Adam), [`Sgd`](crate::optim::Sgd) and [`Lion`](crate::optim::Lion).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::Commit;
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
/// Updates, saved state and what trainers need are methods of [`Commit`]. It is a [`candle_nn::Optimizer`] too, so it replaces candle's in
/// an existing loop by a change of the import. Only `build` allocates state, and [`set_group`](Self::set_group) when it thaws a group.
/// [`commit`](Commit::commit) makes all checks before it changes the first parameter. On CUDA the last of its few launches changes all
/// parameters.
#[derive(Debug)]
pub struct Fused<A> {
    setup: Setup<A>,
    /// The parameters that are not frozen.
    names: Vec<Parameter>,
    /// Whether a loss was scaled since the last update.
    has_scaled: AtomicBool,
    engine: Box<dyn Engine<A>>,
    /// The pieces that were measured last.
    measured: Option<Setup<A>>,
}

impl<A: Algorithm> Fused<A> {
    /// The learning rate, before the factors of groups.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let optimizer = AdamW::builder(vec![w]).learning_rate(3e-4).build()?;
    /// assert_eq!(optimizer.learning_rate(), 3e-4);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn learning_rate(&self) -> f64 {
        self.setup.rule.numbers()[0]
    }

    /// Sets the learning rate, as a schedule does before each update. The next update refuses a rate that is negative or not finite
    /// ([`is_optimizer`](crate::Error::is_optimizer)).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::{AdamW, LearningRate};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::builder(vec![w]).build()?;
    /// let schedule = LearningRate::builder(1e-3).linear(100).build()?;
    /// optimizer.set_learning_rate(schedule.at(50));
    /// assert_eq!(optimizer.learning_rate(), 5e-4);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        if let Some((_, _, value)) = self.setup.rule.hyper_parameters().next() {
            value.set(learning_rate);
        }
    }

    /// Counts of steps, the loss scale and the last norm. On CUDA this waits for the device.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.25).clip_norm(100.).build()?;
    /// optimizer.commit(&w.sqr()?.backward()?)?;
    /// let progress = optimizer.progress()?;
    /// assert_eq!((progress.steps, progress.skipped, progress.gradient_norm), (1, 0, Some(6.)));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors from reading the device.
    pub fn progress(&self) -> Result<Progress> {
        self.engine.progress()
    }

    /// Bytes of the moments and master weights on the parameters' device, counted from their shapes and types.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::{AdamW, Sgd};
    ///
    /// let w = Var::zeros((4, 2), DType::F32, &Device::Cpu)?;
    /// let adamw = AdamW::builder(vec![w.clone()]).build()?;
    /// assert_eq!(adamw.state_bytes(), 2 * 4 * 8); // two moments of 8 elements
    /// let sgd = Sgd::builder(vec![w]).build()?;
    /// assert_eq!(sgd.state_bytes(), 0); // without momentum
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn state_bytes(&self) -> u64 {
        self.setup.updated().map(Managed::kept_bytes).sum()
    }

    /// Bytes of the moments and master weights that [`moments_on_host`](super::FusedBuilder::moments_on_host) has put into host memory;
    /// 0 for CPU parameters, all of whose state is in [`state_bytes`](Self::state_bytes).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let optimizer = AdamW::builder(vec![w]).moments_on_host(1.).build()?;
    /// assert_eq!(optimizer.host_state_bytes(), 0); // the parameter is in host memory too
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn host_state_bytes(&self) -> u64 {
        self.setup.updated().map(Managed::host_bytes).sum()
    }

    /// The hyper-parameters.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let optimizer = AdamW::builder(vec![w]).weight_decay(0.1).build()?;
    /// assert_eq!((optimizer.params().beta1, optimizer.params().weight_decay), (0.9, 0.1));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn params(&self) -> &A {
        &self.setup.rule
    }

    /// Sets the hyper-parameters.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::ParamsSgd;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w]).build()?;
    /// let params = ParamsSgd { weight_decay: 0.1, ..*optimizer.params() };
    /// optimizer.set_params(params)?;
    /// assert_eq!(optimizer.params().weight_decay, 0.1);
    ///
    /// // Momentum needs state that was not allocated.
    /// let params = ParamsSgd { momentum: 0.9, ..params };
    /// assert!(optimizer.set_params(params).unwrap_err().is_optimizer());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// If one is out of its range, or if they need other state than there is (momentum where there was none):
    /// [`is_optimizer`](crate::Error::is_optimizer).
    pub fn set_params(&mut self, mut params: A) -> Result<()> {
        params.check()?;
        if !self.setup.keeps_state_of(&params) {
            let names = self.setup.rule.moments().iter().map(|(name, _)| *name);
            let kept = match Vec::from_iter(names) {
                none if none.is_empty() => "nothing".to_owned(),
                names => names.join(" and "),
            };
            return Err(invalid!(
                Optimizer,
                "{} keeps {kept}, not what these hyper-parameters need: build a new one",
                A::NAME
            ));
        }
        self.setup.rule = params;
        Ok(())
    }

    /// The options of all groups, in the order in which they were given.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Group;
    ///
    /// let [weight, bias] = [Var::new(1f32, &Device::Cpu)?, Var::new(0f32, &Device::Cpu)?];
    /// let biases = Group::from(vec![("bias", bias)]).weight_decay(0.);
    /// let optimizer = AdamW::builder(vec![("weight", weight)]).group(biases).build()?;
    /// assert_eq!(optimizer.groups().len(), 2);
    /// assert_eq!(optimizer.groups()[1].weight_decay, Some(0.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn groups(&self) -> &[GroupOptions] {
        &self.setup.groups
    }

    /// Sets the options of a group.
    ///
    /// Freezing a group drops its moments and master weights. Thawing it allocates new ones, and its steps count from 0, as for new
    /// parameters in PyTorch. To keep the moments, set `learning_rate_factor` to 0 instead. On CUDA both wait for the device.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::{Commit, Group, GroupOptions};
    ///
    /// let [encoder, head] = [Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?];
    /// let encoder = Group::from(vec![("encoder", encoder)]).frozen();
    /// let mut optimizer = AdamW::builder(vec![("head", head)]).group(encoder).build()?;
    /// assert_eq!(optimizer.parameters().len(), 1);
    /// // After some epochs the encoder is trained too, at a tenth of the rate.
    /// optimizer.set_group(1, GroupOptions::default().learning_rate_factor(0.1))?;
    /// assert_eq!(optimizer.parameters().len(), 2);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such group, a number is out of its range or the options are not for the type of a thawed parameter
    /// ([`is_optimizer`](crate::Error::is_optimizer)), and [`ResourceExhausted`](crate::error::ResourceExhausted) without memory for a thawed group's state. Nothing has changed then.
    pub fn set_group(&mut self, index: usize, options: GroupOptions) -> Result<()> {
        options.check(A::NAME)?;
        let groups = self.setup.groups.len();
        let Some(group) = self.setup.groups.get_mut(index) else {
            return Err(invalid!(
                Optimizer,
                "there is no group {index}: the optimizer has {groups}, counted from 0"
            ));
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
    fn set_up(&mut self, setup: Setup<A>, loaded: Option<&Loaded>) -> Result<()> {
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
        let gradients = backward(&self.scale_loss(loss)?)?;
        self.step(&gradients)
    }

    fn learning_rate(&self) -> f64 {
        Self::learning_rate(self)
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        Self::set_learning_rate(self, learning_rate);
    }
}

impl<A: Algorithm> Fused<A> {
    /// Ways to make it use less memory.
    fn ways_to_save(&self) -> Vec<Remedy> {
        // Bytes that are counted, not estimated.
        let on_device = || self.setup.updated().filter(|p| !p.on_host);
        // f64 moments cannot be kept in fewer bits, and a group's own stay.
        let moments_as = |moments: Moments| {
            let held = on_device().filter(|p| !p.has_own_moments);
            let held = held.flat_map(Managed::by_rule);
            let held = held.filter(|held| held.form != Form::Plain(DType::F64));
            let (now, then) = held.fold((0u64, 0u64), |(now, then), held| {
                let other = held.kept_as(moments, DType::F32);
                (now + held.bytes(), then + other.bytes())
            });
            now.saturating_sub(then)
        };
        let by_rule = on_device().flat_map(Managed::by_rule);
        let by_rule: u64 = by_rule.map(Held::bytes).sum();
        // f16 parameters need their master weights.
        let masters = match self.setup.updated().any(|p| p.var.dtype() == DType::F16) {
            true => 0,
            false => on_device().map(Managed::bytes).sum::<u64>() - by_rule,
        };
        // Moments of CUDA parameters can move, with their master weights; see `FusedBuilder::moments_on_host`.
        let movable = on_device().filter(|p| p.var.device().is_cuda());
        let movable = movable.map(Managed::movable_bytes).sum();
        let named = [
            ("moments in bf16", moments_as(Moments::Float(DType::BF16))),
            ("moments of 8 bits", moments_as(Moments::EightBit)),
            (
                "`stochastic_rounding()` in place of `master_weights()`",
                masters,
            ),
            ("moments on the host", movable),
            ("Sgd without momentum", by_rule),
        ];
        let named = named.map(|(advice, saves)| (advice.to_owned(), saves));
        let all = named.into_iter().chain(self.freezing());
        all.filter(|(_, saves)| *saves > 0)
            .map(|(advice, saves)| Remedy::new(advice, Some(saves)))
            .collect()
    }

    /// Freezing a group or, if there is one group, the largest parameter.
    fn freezing(&self) -> Vec<(String, u64)> {
        let updated: Vec<_> = self.setup.updated().collect();
        if self.setup.groups.len() > 1 {
            let groups = (0..self.setup.groups.len()).map(|group| {
                let parameters = updated.iter().filter(|p| p.group == group);
                let saving = parameters.map(|p| frozen_saves(p)).sum();
                (format!("group {group} not trained"), saving)
            });
            return groups.collect();
        }
        let largest = updated.iter().max_by_key(|parameter| parameter.len);
        let largest = largest.filter(|_| updated.len() > 1);
        let largest = largest.map(|p| (format!("`{}` not trained", p.name), frozen_saves(p)));
        largest.into_iter().collect()
    }
}

/// What is kept of a parameter's state, and its summed gradients, which are f32 for smaller types.
fn frozen_saves(parameter: &Managed) -> u64 {
    let gradients = parameter.len * parameter.var.dtype().size_in_bytes().max(4);
    gradients as u64 + parameter.kept_bytes()
}
