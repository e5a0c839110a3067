use candle_core::backprop::GradStore;
use candle_core::{DType, Storage, Tensor};

use super::managed::Managed;
use crate::error::{OptimizerError, Phase, Result};
use crate::optim::GroupOptions;
use crate::optim::rule::{Range, Rule};
use crate::testing;

pub fn rule<R: Rule>(rule: &R) -> Result<()> {
    (rule.hyper_parameters())
        .try_for_each(|hyper| hyper.range.check(R::NAME, hyper.name, hyper.value))
}

/// candle's method that sets the learning rate returns no error, so each update checks it.
pub fn learning_rate<R: Rule>(rule: &R, groups: &[GroupOptions]) -> Result<()> {
    let rate = rule.learning_rate();
    Range::NotNegative.check(R::NAME, "lr", rate)?;
    groups.iter().try_for_each(|group| {
        let rate = rate * group.learning_rate_factor;
        Range::NotNegative.check(R::NAME, "lr * learning_rate_factor", rate)
    })
}

pub fn group<R: Rule>(options: &GroupOptions) -> Result<()> {
    let factor = options.learning_rate_factor;
    Range::NotNegative.check(R::NAME, "learning_rate_factor", factor)?;
    options.weight_decay.map_or(Ok(()), |decay| {
        Range::NotNegative.check(R::NAME, "weight_decay", decay)
    })
}

/// Finds everything that could keep an update from being applied. `occupied` is the memory of all parameters, in order.
pub fn gradients(parameters: &[Managed], occupied: &[usize], gradients: &GradStore) -> Result<()> {
    for parameter in parameters {
        testing::inject(Phase::Optimizer)?;
        if let Some(gradient) = parameter.gradient(gradients) {
            check(parameter, gradient, occupied)?;
        }
    }
    Ok(())
}

fn check(parameter: &Managed, gradient: &Tensor, occupied: &[usize]) -> Result<()> {
    let (var, parameter) = (&parameter.var, &parameter.name);
    let is_half = matches!(var.dtype(), DType::F16 | DType::BF16);
    let error = if gradient.shape() != var.shape() {
        OptimizerError::GradientShape {
            parameter: parameter.clone(),
            expected: var.shape().clone(),
            found: gradient.shape().clone(),
        }
    } else if gradient.dtype() != var.dtype() && !(is_half && gradient.dtype() == DType::F32) {
        OptimizerError::GradientDType {
            parameter: parameter.clone(),
            expected: var.dtype(),
            found: gradient.dtype(),
        }
    } else if !var.device().same_device(gradient.device()) {
        OptimizerError::GradientDevice {
            parameter: parameter.clone(),
            expected: var.device().location(),
            found: gradient.device().location(),
        }
    } else if occupied.binary_search(&memory(gradient)).is_ok() {
        // candle refuses the parameter's own memory. Another parameter's would be read before or after that one is updated.
        OptimizerError::GradientShared {
            parameter: parameter.clone(),
        }
    } else {
        return Ok(());
    };
    Err(error.into())
}

/// The address of a tensor's storage: the same for all views of it, as long as it lives.
pub fn memory(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}
