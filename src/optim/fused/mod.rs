mod adjustment;
mod builder;
mod check;
mod engine;
mod managed;
mod remedies;
mod state;
mod state_reader;

pub use adjustment::{Adjustment, Counters, LossScale, Progress};
pub use builder::FusedBuilder;
pub use check::hyper_parameter;
pub use engine::Snapshot;
pub use managed::{Managed, Update};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_nn::Optimizer;

use crate::error::Remedy;
use crate::error::{OptimizerError, Result};
use crate::optim::{Algorithm, Commit, Committed, Group, GroupOptions, Parameter, StateDict};
use engine::Engine;

/// An optimizer whose update is one pass over each parameter, happens as a whole or not at all, and allocates nothing; by its
/// names [`AdamW`](crate::AdamW), [`Adam`](crate::Adam), [`Sgd`](crate::Sgd), [`Lion`](crate::Lion) and
/// [`Adafactor`](crate::Adafactor).
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdamW, ParamsAdamW};
/// use candle_nn::{linear, loss, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let mut optimizer = AdamW::new(&varmap, ParamsAdamW { lr: 0.05, ..Default::default() })?;
/// let (x, y) = (Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?, Tensor::zeros(8, DType::U32, &Device::Cpu)?);
/// for _ in 0..10 {
///     let loss = loss::cross_entropy(&model.forward(&x)?, &y)?;
///     optimizer.commit(&loss.backward()?)?;
/// }
/// assert_eq!(optimizer.progress()?.steps, 10);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// It is a [`candle_nn::Optimizer`] too, so it takes the place of candle's in an existing loop by its import alone.
///
/// All that is kept for parameters is allocated when it is built. [`commit`](Self::commit) first finds out all that could keep
/// it from going through; from the first parameter that moves on, nothing can fail any more. On CUDA it is a single launch that
/// moves all parameters.
#[derive(Debug)]
pub struct Fused<A> {
    algorithm: A,
    groups: Vec<GroupOptions>,
    parameters: Vec<Managed>,
    /// Those that are not frozen, in the order in which they were given.
    updated: Vec<Parameter>,
    /// Where the parameters lie, in order.
    memory: Vec<usize>,
    adjustment: Adjustment,
    engine: Engine,
}

impl<A: Algorithm> Fused<A> {
    /// An optimizer of these parameters: a `Vec<Var>`, named Vars, a [`VarMap`](candle_nn::VarMap), or a [`Group`].
    ///
    /// # Errors
    /// As [`FusedBuilder::build`].
    pub fn new(parameters: impl Into<Group>, params: A) -> Result<Self> {
        Self::builder(parameters).params(params).build()
    }

    /// The same with default hyper-parameters but for the learning rate.
    ///
    /// # Errors
    /// As [`FusedBuilder::build`].
    pub fn new_lr(parameters: impl Into<Group>, learning_rate: f64) -> Result<Self> {
        Self::builder(parameters)
            .learning_rate(learning_rate)
            .build()
    }

    /// For groups, clipping, loss scale, master weights and moments in bf16.
    pub fn builder(parameters: impl Into<Group>) -> FusedBuilder<A> {
        FusedBuilder::new(parameters.into())
    }

    /// Applies one update with these gradients, wholly or, with an error, not at all; after an error it can be called again.
    /// Parameters without a gradient stay as they are, and their step is not counted.
    ///
    /// Nothing is allocated, on the host or on the device, and this crate waits for nothing: on CUDA whether the step was skipped is
    /// known when [`progress`](Self::progress) is asked.
    ///
    /// # Errors
    /// [`OptimizerError`] where a gradient does not fit its parameter, or candle's
    /// [`set_learning_rate`](Optimizer::set_learning_rate) was given one that cannot be; on a device any error of launching. Only
    /// [`UpdateInterrupted`](crate::UpdateInterrupted) would mean that parameters have moved; it stands for what should be
    /// impossible.
    pub fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        check::learning_rate(&self.algorithm, &self.groups)?;
        check::gradients(&self.parameters, &self.memory, &self.groups, gradients)?;
        self.engine.commit(&Update {
            rule: &self.algorithm,
            groups: &self.groups,
            adjustment: &self.adjustment,
            parameters: &self.parameters,
            gradients,
        })
    }

    /// The loss times the loss scale, in f32 (or f64) where it has one, and the loss itself where it has none: what is to be
    /// differentiated. A trainer does this by itself.
    ///
    /// # Errors
    /// candle's.
    pub fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        if self.adjustment.loss_scale.is_none() {
            return Ok(loss.clone());
        }
        let loss = match loss.dtype() {
            // The scale times a loss of 1 may be too much for f16.
            DType::F16 | DType::BF16 => loss.to_dtype(DType::F32)?,
            _ => loss.clone(),
        };
        self.engine.scale(&loss)
    }

    /// How far it has come. On CUDA this waits for the device.
    ///
    /// # Errors
    /// candle's, from reading the device.
    pub fn progress(&self) -> Result<Progress> {
        let counters = self.engine.counters()?;
        Ok(Progress {
            steps: counters.steps,
            skipped: counters.skipped,
            loss_scale: self.adjustment.loss_scale.map(|_| counters.scale),
            gradient_norm: counters.norm,
        })
    }

    /// Bytes of the moments and master weights that it keeps, counted from their shapes and types.
    pub fn state_bytes(&self) -> u64 {
        let parameters = self.parameters.iter().map(|parameter| {
            let kept = parameter
                .kept
                .iter()
                .map(|(kept, dtype)| kept.dims.iter().product::<usize>() * dtype.size_in_bytes());
            let master = if parameter.has_master {
                parameter.len * size_of::<f32>()
            } else {
                0
            };
            (kept.sum::<usize>() + master) as u64
        });
        parameters.sum()
    }

    /// The hyper-parameters.
    pub fn params(&self) -> &A {
        &self.algorithm
    }

    /// Goes on with other hyper-parameters.
    ///
    /// # Errors
    /// [`OptimizerError`] where one is out of its range, or they would need other state than there is (momentum where there was none).
    pub fn set_params(&mut self, params: A) -> Result<()> {
        check::rule(&params)?;
        if !self.keeps_state_of(&params) {
            let kept = self.parameters.iter().flat_map(|parameter| &parameter.kept);
            let mut names: Vec<_> = kept.map(|(kept, _)| kept.name).collect();
            names.sort_unstable();
            names.dedup();
            return Err(OptimizerError::Kept {
                optimizer: A::NAME,
                kept: match names.as_slice() {
                    [] => "nothing".to_owned(),
                    names => names.join(" and "),
                },
            }
            .into());
        }
        self.algorithm = params;
        Ok(())
    }

    fn keeps_state_of(&self, params: &A) -> bool {
        (self.parameters.iter()).all(|parameter| {
            let kept = parameter.kept.iter().map(|(kept, _)| kept);
            kept.eq(&params.state(parameter.var.dims()))
        })
    }

    /// How the groups are treated, in the order in which they were given.
    pub fn groups(&self) -> &[GroupOptions] {
        &self.groups
    }

    /// How a group is treated.
    ///
    /// # Errors
    /// [`OptimizerError::Group`] where there is none of this index.
    pub fn group(&self, index: usize) -> Result<GroupOptions> {
        let groups = self.groups.len();
        let options = self.groups.get(index).copied();
        options.ok_or_else(|| {
            OptimizerError::Group {
                group: index,
                groups,
            }
            .into()
        })
    }

    /// Treats a group in another way from now on, for example thaws it.
    ///
    /// # Errors
    /// [`OptimizerError`] where there is no such group or a number is out of its range.
    pub fn set_group(&mut self, index: usize, options: GroupOptions) -> Result<()> {
        check::group::<A>(&options)?;
        self.group(index)?;
        if let Some(group) = self.groups.get_mut(index) {
            *group = options;
            self.updated = updated(&self.parameters, &self.groups);
        }
        Ok(())
    }
}

/// As candle's, with the same loop around it. A [`step`](Self::step) that fails has changed nothing.
impl<A: Algorithm> Optimizer for Fused<A> {
    type Config = A;

    fn new(vars: Vec<candle_core::Var>, params: A) -> candle_core::Result<Self> {
        Ok(Fused::new(vars, params)?)
    }

    fn step(&mut self, gradients: &GradStore) -> candle_core::Result<()> {
        self.commit(gradients)?;
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.algorithm.learning_rate()
    }

    /// One that is negative or not a number is refused by the next [`step`](Self::step): candle's signature has no error.
    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.algorithm.set_learning_rate(learning_rate);
    }
}

/// The parameters that are not frozen, in the order in which they were given.
fn updated(parameters: &[Managed], groups: &[GroupOptions]) -> Vec<Parameter> {
    let is_updated = |parameter: &&Managed| {
        let options = groups.get(parameter.group);
        !options.is_some_and(|options| options.frozen)
    };
    let mut updated: Vec<_> = parameters.iter().filter(is_updated).collect();
    updated.sort_by_key(|parameter| parameter.place);
    let updated = updated.into_iter();
    updated
        .map(|parameter| Parameter::new(&parameter.name, parameter.var.clone()))
        .collect()
}

impl<A: Algorithm> Commit for Fused<A> {
    fn parameters(&self) -> &[Parameter] {
        &self.updated
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        Fused::commit(self, gradients)
    }

    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        Fused::scale_loss(self, loss)
    }

    fn takes_f32(&self) -> bool {
        true
    }

    fn remedies(&self) -> Vec<Remedy> {
        Fused::remedies(self)
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(Fused::state_bytes(self))
    }

    fn state(&self) -> Result<StateDict> {
        Fused::state(self)
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        Fused::load_state(self, state)
    }
}
