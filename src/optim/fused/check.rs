use candle_core::backprop::GradStore;
use candle_core::{DType, Storage, Tensor};

use super::managed::{Managed, gradient};
use crate::error::{OptimizerError, Phase, Result};
use crate::optim::group::GroupOptions;
use crate::optim::rule::{Range, Rule};
use crate::testing;

pub fn hyper_parameter(
    optimizer: &'static str,
    name: &'static str,
    value: f64,
    range: Range,
) -> Result<()> {
    match range.holds(value) {
        true => Ok(()),
        false => Err(OptimizerError::HyperParameter {
            optimizer,
            name,
            value: value.to_string(),
            allowed: range.words(),
        }
        .into()),
    }
}

pub fn rule<R: Rule>(rule: &R) -> Result<()> {
    (rule.hyper_parameters())
        .try_for_each(|hyper| hyper_parameter(R::NAME, hyper.name, hyper.value, hyper.range))
}

/// candle's way of setting it has no error to return, so it is looked at before each update; without the list of
/// [`rule`], which would be allocated.
pub fn learning_rate<R: Rule>(rule: &R, groups: &[GroupOptions]) -> Result<()> {
    let rate = rule.learning_rate();
    hyper_parameter(R::NAME, "lr", rate, Range::NotNegative)?;
    groups.iter().try_for_each(|group| {
        let rate = rate * group.learning_rate_factor;
        hyper_parameter(
            R::NAME,
            "lr · learning_rate_factor",
            rate,
            Range::NotNegative,
        )
    })
}

pub fn group<R: Rule>(options: &GroupOptions) -> Result<()> {
    let factor = options.learning_rate_factor;
    hyper_parameter(R::NAME, "learning_rate_factor", factor, Range::NotNegative)?;
    options.weight_decay.map_or(Ok(()), |decay| {
        hyper_parameter(R::NAME, "weight_decay", decay, Range::NotNegative)
    })
}

/// Finds out all that could keep an update from being applied, before anything is.
pub fn gradients(
    parameters: &[Managed],
    occupied: &[usize],
    groups: &[GroupOptions],
    gradients: &GradStore,
) -> Result<()> {
    for parameter in parameters {
        testing::inject(Phase::Optimizer)?;
        let Some(gradient) = gradient(groups, gradients, parameter) else {
            continue;
        };
        let (var, name) = (&parameter.var, || parameter.name.clone());
        if gradient.shape() != var.shape() {
            return Err(OptimizerError::GradientShape {
                parameter: name(),
                expected: var.shape().clone(),
                found: gradient.shape().clone(),
            }
            .into());
        }
        let takes = gradient.dtype() == var.dtype()
            || (gradient.dtype() == DType::F32 && matches!(var.dtype(), DType::F16 | DType::BF16));
        if !takes {
            return Err(OptimizerError::GradientDType {
                parameter: name(),
                expected: var.dtype(),
                found: gradient.dtype(),
            }
            .into());
        }
        if !var.device().same_device(gradient.device()) {
            return Err(OptimizerError::GradientDevice {
                parameter: name(),
                expected: var.device().location(),
                found: gradient.device().location(),
            }
            .into());
        }
        // candle would refuse its own parameter's; another's could be read before or after that one has moved.
        if occupied.binary_search(&memory(gradient)).is_ok() {
            return Err(OptimizerError::GradientShared { parameter: name() }.into());
        }
    }
    Ok(())
}

/// Which memory a tensor lies in: the same for all views of it, and as long as it lives.
pub fn memory(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}
