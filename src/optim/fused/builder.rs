use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use candle_core::Device;

use super::Fused;
use super::adjustment::LossScale;
use super::engine::Engine;
use super::managed::{Halves, Managed, memory};
use super::setup::Setup;
use crate::error::{Result, invalid, listed_twice, nothing_to_train};
#[cfg(feature = "cuda")]
use crate::optim::cuda;
use crate::optim::rule::Range;
use crate::optim::{Algorithm, Group, Moments, Shard, cpu};

/// Builds an optimizer; from [`Fused::builder`].
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom::optim::LossScale;
/// use candle_headroom::AdamW;
/// use candle_nn::Optimizer;
///
/// let w = Var::ones((4, 2), DType::F16, &Device::Cpu)?;
/// let mut optimizer = AdamW::builder(vec![w.clone()])
///     .learning_rate(1e-3)
///     .clip_norm(1.)
///     .loss_scale(LossScale::dynamic())
///     .master_weights()
///     .moments(DType::BF16)
///     .build()?;
/// optimizer.backward_step(&w.to_dtype(DType::F32)?.sqr()?.mean_all()?)?;
/// assert_eq!(optimizer.progress()?.steps, 1);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct FusedBuilder<A> {
    /// Without parameters yet.
    setup: Setup<A>,
    /// Learning rate and weight decay.
    rates: [Option<f64>; 2],
    groups: Vec<Group>,
    moments: Option<Moments>,
}

impl<A: Algorithm> Fused<A> {
    /// A builder for an optimizer of these parameters: a `Vec<Var>`, named Vars, a [`VarMap`](candle_nn::VarMap), or a [`Group`].
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Commit;
    /// use candle_nn::{VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu).pp("head"))?;
    /// let optimizer = AdamW::builder(&varmap).build()?;
    /// let names = optimizer.parameters().iter().map(|parameter| parameter.name.as_str());
    /// assert!(names.eq(["head.bias", "head.weight"]));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(parameters: impl Into<Group>) -> FusedBuilder<A> {
        FusedBuilder {
            setup: Setup::default(),
            rates: [None; 2],
            groups: vec![parameters.into()],
            moments: None,
        }
    }
}

impl<A: Algorithm> FusedBuilder<A> {
    /// Sets all hyper-parameters; those of PyTorch by default (of candle for AdamW).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::ParamsAdamW;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let params = ParamsAdamW { beta2: 0.95, weight_decay: 0.1, ..ParamsAdamW::default() };
    /// let optimizer = AdamW::builder(vec![w]).params(params).learning_rate(3e-4).build()?;
    /// assert_eq!((optimizer.params().beta2, optimizer.learning_rate()), (0.95, 3e-4));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn params(mut self, params: A) -> Self {
        self.setup.rule = params;
        self
    }

    /// Sets the learning rate. It takes precedence over [`params`](Self::params).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.25).build()?;
    /// optimizer.commit(&w.sqr()?.backward()?)?;
    /// assert_eq!(w.to_scalar::<f32>()?, 1.5); // 3 − 0.25 · 6
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn learning_rate(mut self, learning_rate: f64) -> Self {
        self.rates[0] = Some(learning_rate);
        self
    }

    /// Sets the weight decay of the groups that have none of their own. It takes precedence over [`params`](Self::params).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.25).weight_decay(0.5).build()?;
    /// optimizer.commit(&w.sqr()?.backward()?)?;
    /// assert_eq!(w.to_scalar::<f32>()?, 1.125); // 3 − 0.25 · (6 + 0.5 · 3)
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.rates[1] = Some(weight_decay);
        self
    }

    /// Adds parameters as a further group. [`set_group`](Fused::set_group) counts groups in the order in which they are given, from 0 for that
    /// of [`Fused::builder`].
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::{Commit, Group};
    ///
    /// let [encoder, head] = [Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?];
    /// let encoder = Group::from(vec![("encoder", encoder)]).learning_rate_factor(0.1);
    /// let optimizer = AdamW::builder(vec![("head", head)]).group(encoder).build()?;
    /// assert_eq!(optimizer.groups()[1].learning_rate_factor, 0.1);
    /// assert_eq!(optimizer.parameters()[1].name, "encoder");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn group(mut self, group: impl Into<Group>) -> Self {
        self.groups.push(group.into());
        self
    }

    /// Scales all gradients down if their global norm is above `norm`, which has to be above 0. Skips and counts a step with a gradient
    /// that is not finite.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.1).clip_norm(1.).build()?;
    /// optimizer.commit(&w.sqr()?.backward()?)?; // a gradient of 6 counts as one of 1
    /// assert!((w.to_scalar::<f32>()? - 2.9).abs() < 1e-5);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.setup.adjustment.clip_norm = Some(norm);
        self
    }

    /// Clamps each element of each gradient to ± `value`, which has to be above 0, after `clip_norm`.
    ///
    /// Unlike [`clip_norm`](Self::clip_norm) it changes the direction of an update. Both may be set.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(&[3f32, 0.25], &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.25).clip_value(1.).build()?;
    /// optimizer.commit(&w.sqr()?.sum_all()?.backward()?)?; // [6, 0.5] counts as [1, 0.5]
    /// assert_eq!(w.to_vec1::<f32>()?, [2.75, 0.125]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn clip_value(mut self, value: f64) -> Self {
        self.setup.adjustment.clip_value = Some(value);
        self
    }

    /// Skips and counts a step with a gradient that is not finite.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(0f32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::builder(vec![w.clone()]).skip_non_finite().build()?;
    /// optimizer.commit(&w.sqrt()?.backward()?)?; // its slope is infinite at 0
    /// assert_eq!(w.to_scalar::<f32>()?, 0.);
    /// assert_eq!(optimizer.progress()?.skipped, 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn skip_non_finite(mut self) -> Self {
        self.setup.adjustment.skips_non_finite = true;
        self
    }

    /// Multiplies losses by a scale, for f16 parameters. [`Commit::commit`](crate::optim::Commit::commit) then expects gradients
    /// of a loss from [`Commit::scale_loss`](crate::optim::Commit::scale_loss). Skips and counts a step with a gradient that is not finite.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::{Commit, LossScale};
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let builder = Sgd::builder(vec![w.clone()]).learning_rate(0.25);
    /// let mut optimizer = builder.loss_scale(LossScale::fixed(1024.)).build()?;
    /// let loss = optimizer.scale_loss(&w.sqr()?)?;
    /// assert_eq!(loss.to_scalar::<f32>()?, 9. * 1024.);
    /// optimizer.commit(&loss.backward()?)?; // divides the gradient by 1024
    /// assert_eq!(w.to_scalar::<f32>()?, 1.5);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.setup.adjustment.loss_scale = Some(scale);
        self
    }

    /// Keeps an f32 copy of f16 and bf16 parameters (4 bytes per element) and updates that, so that steps too small for the type
    /// add up. If something else writes to a parameter, such as loading a checkpoint, its new value is used. Replaces
    /// [`stochastic_rounding`](Self::stochastic_rounding).
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// // Below 256, numbers in bf16 are 1 apart.
    /// let w = Var::from_tensor(&Tensor::new(256f32, &Device::Cpu)?.to_dtype(DType::BF16)?)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.25).master_weights().build()?;
    /// for _ in 0..8 {
    ///     optimizer.commit(&w.to_dtype(DType::F32)?.backward()?)?; // a gradient of 1
    /// }
    /// assert_eq!(w.to_dtype(DType::F32)?.to_scalar::<f32>()?, 254.); // 256 without master weights
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn master_weights(mut self) -> Self {
        self.setup.halves = Halves::Masters;
        self
    }

    /// Rounds bf16 parameters up or down at random, in proportion, so that steps too small for the type add up in the mean, without the
    /// memory of [`master_weights`](Self::master_weights), which it replaces. The noise depends on the parameter's name, the step and the position alone, so a
    /// run repeats bit by bit. f32 and f64 parameters are not rounded; f16 ones are refused, unless they are frozen.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::Commit;
    ///
    /// // Below 256, numbers in bf16 are 1 apart.
    /// let w = Var::from_tensor(&Tensor::full(256f32, 1024, &Device::Cpu)?.to_dtype(DType::BF16)?)?;
    /// let builder = Sgd::builder(vec![w.clone()]).learning_rate(0.25);
    /// let mut optimizer = builder.stochastic_rounding().build()?;
    /// optimizer.commit(&w.to_dtype(DType::F32)?.sum_all()?.backward()?)?; // gradients of 1
    /// let rounded = w.to_dtype(DType::F32)?.to_vec1::<f32>()?; // 255.75: about a quarter goes down
    /// assert!(rounded.contains(&255.) && rounded.contains(&256.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn stochastic_rounding(mut self) -> Self {
        self.setup.halves = Halves::Stochastic;
        self
    }

    /// Keeps moments in fewer bits: in `DType::BF16` (2 bytes per element instead of 4) with stochastic rounding, so that small changes
    /// add up, or in [`Moments::EightBit`]. By default they are f32, and f64 for f64 parameters. [`Group::moments`] takes precedence.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::zeros((4, 2), DType::F32, &Device::Cpu)?;
    /// let optimizer = AdamW::builder(vec![w]).moments(DType::BF16).build()?;
    /// assert_eq!(optimizer.state_bytes(), 2 * 2 * 8); // two moments of 8 elements
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn moments(mut self, moments: impl Into<Moments>) -> Self {
        self.moments = Some(moments.into());
        self
    }

    /// Keeps about this part of the bytes of moments and master weights, above 0 and at most 1, in page-locked host memory, which the
    /// update's kernel reads and writes over the bus. The results are the same to the bit, and an update needs no further device memory, but
    /// it takes at least as long as the bus needs.
    ///
    /// Whole parameters move, with their master weights: in each group the largest first, until at least this part is there. For CPU
    /// parameters, and for `Sgd` without momentum, it has no effect.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?; // or on a GPU
    /// let optimizer = AdamW::builder(vec![w.clone()]).moments_on_host(0.5).build()?;
    /// assert_eq!(optimizer.state_bytes() + optimizer.host_state_bytes(), 8);
    ///
    /// let error = AdamW::builder(vec![w]).moments_on_host(1.5).build().unwrap_err();
    /// let text = "`moments_on_host` of AdamW must be above 0 and at most 1, got 1.5";
    /// assert_eq!(error.to_string(), text);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn moments_on_host(mut self, fraction: f64) -> Self {
        self.setup.on_host = Some(fraction);
        self
    }

    /// Divides the state among the ranks of a trainer's group, as ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054): allocates none
    /// until the trainer says for which elements. Until then updates are refused ([`is_optimizer`](crate::Error::is_optimizer)).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Commit;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::builder(vec![w.clone()]).sharded().build()?;
    /// assert_eq!(optimizer.state_bytes(), 0);
    /// // A trainer that is built with `.group(&group)` gives each rank its elements.
    /// assert!(optimizer.commit(&w.sqr()?.backward()?).unwrap_err().is_optimizer());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn sharded(mut self) -> Self {
        self.setup.shard = Some(Shard::default());
        self
    }

    /// Builds the optimizer and allocates its state.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// assert!(AdamW::builder(vec![w.clone()]).build().is_ok());
    /// let error = AdamW::builder(vec![w]).learning_rate(-1.).build().unwrap_err();
    /// assert_eq!(error.to_string(), "`lr` of AdamW must be finite and at least 0, got -1");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// A hyper-parameter out of its range, two Vars of one name, a type that cannot be rounded so, Vars on several devices or on one
    /// without fused passes ([`is_optimizer`](crate::Error::is_optimizer)); no Var to train, a Var that is listed twice, a type that cannot
    /// be trained ([`is_parameter`](crate::Error::is_parameter)); and [`ResourceExhausted`](crate::error::ResourceExhausted).
    pub fn build(self) -> Result<Fused<A>> {
        let mut setup = self.setup;
        for ((_, _, value), given) in setup.rule.hyper_parameters().zip(self.rates) {
            if let Some(given) = given {
                value.set(given);
            }
        }
        setup.rule.check()?;
        setup.adjustment.check(A::NAME)?;
        Range::PART.check(A::NAME, "moments_on_host", setup.on_host)?;
        let (mut vars, mut names) = (HashSet::new(), HashSet::new());
        for (group, given) in self.groups.into_iter().enumerate() {
            given.options.check(A::NAME)?;
            setup.groups.push(given.options);
            let moments = (self.moments, given.moments);
            for parameter in given.named(vars.len()) {
                let name = &parameter.name;
                if !vars.insert(parameter.var.id()) {
                    return Err(listed_twice(name));
                }
                // Integer Vars are skipped, as by candle's optimizers.
                if !parameter.var.dtype().is_float() {
                    continue;
                }
                if !names.insert(name.clone()) {
                    return Err(invalid!(
                        Optimizer,
                        "two parameters have the name `{name}`: give each its own"
                    ));
                }
                let managed = Managed::new(&setup.rule, parameter, group, moments, setup.halves)?;
                setup.parameters.push(managed);
            }
        }
        let device = one_device(&setup.parameters)?;
        setup.memory = setup.parameters.iter().map(|p| memory(&p.var)).collect();
        setup.memory.sort_unstable();
        setup.on_host = setup.on_host.filter(|_| device.is_cuda());
        setup.check_options()?;
        let setup = setup.cut(setup.shard.as_ref())?;
        let engine: Box<dyn Engine<A>> = match &device {
            Device::Cpu => Box::new(cpu::Engine::new(&setup)?),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Box::new(cuda::Engine::new(device, &setup, None, None)?),
            _ => {
                return Err(invalid!(
                    Optimizer,
                    "fused optimizers run on the CPU and, with the feature `cuda`, on CUDA, not on {:?}: use candle_nn's there",
                    device.location()
                ));
            }
        };
        Ok(Fused {
            engine,
            names: setup.names(),
            setup,
            has_scaled: AtomicBool::new(false),
            measured: None,
        })
    }
}

/// The device of all parameters.
fn one_device(parameters: &[Managed]) -> Result<Device> {
    let Some(first) = parameters.first() else {
        return Err(nothing_to_train());
    };
    let expected = first.var.device();
    match (parameters.iter()).find(|p| !expected.same_device(p.var.device())) {
        None => Ok(expected.clone()),
        Some(parameter) => Err(invalid!(
            Optimizer,
            "parameter `{}` is on {:?}, not {:?}: use an optimizer for each",
            parameter.name,
            parameter.var.device().location(),
            expected.location()
        )),
    }
}
