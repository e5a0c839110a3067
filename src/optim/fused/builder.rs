use std::collections::{HashMap, HashSet};

use candle_core::{DType, Device, Var};

use super::adjustment::{Adjustment, LossScale};
use super::engine::Engine;
use super::group::Group;
use super::parameter::Parameter;
use super::{Fused, check};
use crate::error::{OptimizerError, ParameterError, Result};
use crate::optim::cpu::is_shared;
use crate::optim::{Algorithm, rule::Kept};

/// What a fused optimizer is made of; from [`Fused::builder`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdamW, LossScale, ParamsAdamW};
/// use candle_nn::{linear, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F16, &Device::Cpu))?;
/// let mut optimizer = AdamW::builder(ParamsAdamW::default())
///     .group(&varmap)
///     .clip_norm(1.)
///     .loss_scale(LossScale::dynamic())
///     .master_weights()
///     .moments(DType::BF16)
///     .build()?;
/// let x = Tensor::ones((8, 4), DType::F16, &Device::Cpu)?;
/// let loss = model.forward(&x)?.to_dtype(DType::F32)?.sqr()?.mean_all()?;
/// optimizer.commit(&optimizer.scale_loss(&loss)?.backward()?)?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct FusedBuilder<A> {
    algorithm: A,
    groups: Vec<Group>,
    adjustment: Adjustment,
    moments: Option<DType>,
    has_masters: bool,
}

impl<A: Algorithm> FusedBuilder<A> {
    pub(super) fn new(algorithm: A) -> Self {
        Self {
            algorithm,
            groups: Vec::new(),
            adjustment: Adjustment::default(),
            moments: None,
            has_masters: false,
        }
    }

    /// Adds parameters, as a group of their own.
    pub fn group(mut self, group: impl Into<Group>) -> Self {
        self.groups.push(group.into());
        self
    }

    /// Scales all gradients down together where their global norm is above this. A step whose gradients are not all finite has
    /// no norm: it is skipped and counted.
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.adjustment.clip_norm = Some(norm);
        self
    }

    /// Clamps each element of each gradient to ± this; after `clip_norm`, where both are asked for.
    pub fn clip_value(mut self, value: f64) -> Self {
        self.adjustment.clip_value = Some(value);
        self
    }

    /// Skips, and counts, a step whose gradients are not all finite.
    pub fn skip_non_finite(mut self) -> Self {
        self.adjustment.skips_non_finite = true;
        self
    }

    /// Expects gradients of a loss that was scaled by [`Fused::scale_loss`], as f16 parameters need it.
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.adjustment.loss_scale = Some(scale);
        self
    }

    /// Keeps f16 and bf16 parameters in f32 as well (4 bytes per element), and moves those: steps too small for the type add up. A
    /// parameter that something else writes to, such as a checkpoint that is loaded, goes on from what was written.
    pub fn master_weights(mut self) -> Self {
        self.has_masters = true;
        self
    }

    /// Keeps moments in bf16 (2 bytes per element instead of 4), rounded at random, so that they do not stand still. Without it
    /// they are f32, and f64 for f64 parameters. Adafactor's are small and stay as they are.
    pub fn moments(mut self, dtype: DType) -> Self {
        self.moments = Some(dtype);
        self
    }

    /// Allocates all that the optimizer keeps.
    ///
    /// # Errors
    /// [`OptimizerError`] and [`ParameterError`]: a hyper-parameter out of its range, no Var to train, one that is listed twice,
    /// two of one name, a type that cannot be trained, Vars on several devices or on one without fused passes; and
    /// [`ResourceExhausted`](crate::ResourceExhausted).
    pub fn build(self) -> Result<Fused<A>> {
        check::rule(&self.algorithm)?;
        self.adjustment.check(A::NAME)?;
        let mut parameters = Vec::new();
        let mut groups = Vec::new();
        let mut seen = HashMap::new();
        let mut index = 0;
        for (group, given) in self.groups.into_iter().enumerate() {
            check::group::<A>(&given.options)?;
            groups.push(given.options);
            for (name, var) in given.parameters {
                if seen.insert(var.id(), index).is_some() {
                    let parameter = name.unwrap_or_else(|| index.to_string());
                    return Err(ParameterError::Duplicate { parameter }.into());
                }
                // Integer Vars are passed over, as candle's optimizers do.
                if var.dtype().is_float() {
                    let name = name.unwrap_or_else(|| index.to_string());
                    let kept = self.algorithm.state(var.dims());
                    let kept = kept_types(kept, &name, &var, self.moments)?;
                    parameters.push(parameter(name, var, group, kept, self.has_masters)?);
                }
                index += 1;
            }
        }
        let device = one_device(&parameters)?;
        // Large ones first: they are worked on one after the other, the small ones side by side.
        parameters.sort_by_key(|parameter| !is_shared(parameter.len));
        let engine = Engine::new(&device, &self.algorithm, &parameters, &self.adjustment)?;
        let mut memory: Vec<_> = (parameters.iter())
            .map(|parameter| check::memory(&parameter.var))
            .collect();
        memory.sort_unstable();
        Ok(Fused {
            algorithm: self.algorithm,
            groups,
            parameters,
            memory,
            adjustment: self.adjustment,
            engine,
        })
    }
}

fn parameter(
    name: String,
    var: Var,
    group: usize,
    kept: Vec<(Kept, DType)>,
    has_masters: bool,
) -> Result<Parameter> {
    let Some((start, end)) = var.layout().contiguous_offsets() else {
        return Err(OptimizerError::NotContiguous { parameter: name }.into());
    };
    let flat = var.as_detached_tensor().flatten_all()?;
    Ok(Parameter {
        handle: flat.narrow(0, 0, flat.elem_count().min(1))?,
        start,
        len: end - start,
        has_master: has_masters && matches!(var.dtype(), DType::F16 | DType::BF16),
        name,
        var,
        group,
        kept,
    })
}

/// Which type each tensor of state has.
fn kept_types(
    kept: Vec<Kept>,
    name: &str,
    var: &Var,
    moments: Option<DType>,
) -> Result<Vec<(Kept, DType)>> {
    let full = match var.dtype() {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        dtype => {
            let parameter = name.to_owned();
            return Err(ParameterError::DType { parameter, dtype }.into());
        }
    };
    let moments = moments.unwrap_or(full);
    if moments != full && (moments, full) != (DType::BF16, DType::F32) {
        return Err(OptimizerError::Moments {
            parameter: name.to_owned(),
            parameter_dtype: var.dtype(),
            dtype: moments,
        }
        .into());
    }
    let kept = kept.into_iter().map(|kept| {
        let dtype = if kept.is_moment { moments } else { full };
        (kept, dtype)
    });
    Ok(kept.collect())
}

/// The device of all parameters, each of which has its own name.
fn one_device(parameters: &[Parameter]) -> Result<Device> {
    let Some(first) = parameters.first() else {
        return Err(ParameterError::None.into());
    };
    let mut names = HashSet::new();
    for parameter in parameters {
        if !names.insert(&parameter.name) {
            return Err(OptimizerError::Name {
                name: parameter.name.clone(),
            }
            .into());
        }
        if !first.var.device().same_device(parameter.var.device()) {
            return Err(OptimizerError::Devices {
                parameter: parameter.name.clone(),
                expected: first.var.device().location(),
                found: parameter.var.device().location(),
            }
            .into());
        }
    }
    Ok(first.var.device().clone())
}
