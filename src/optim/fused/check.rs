use candle_core::backprop::GradStore;
use candle_core::{DType, Storage, Tensor};

use super::managed::Managed;
use super::setup::Setup;
use crate::error::{OptimizerError, Phase, Result};
use crate::optim::GroupOptions;
use crate::optim::rule::{Range, Rule};
use crate::testing;

pub fn rule<R: Rule>(rule: &mut R) -> Result<()> {
    (rule.hyper_parameters())
        .try_for_each(|(name, range, value)| range.check(R::NAME, name, value.get()))
}

pub fn group<R: Rule>(options: &GroupOptions) -> Result<()> {
    let factor = options.learning_rate_factor;
    Range::NOT_NEGATIVE.check(R::NAME, "learning_rate_factor", factor)?;
    options.weight_decay.map_or(Ok(()), |decay| {
        Range::NOT_NEGATIVE.check(R::NAME, "weight_decay", decay)
    })
}

/// Checks everything that could make an update fail. `occupied` is the sorted memory of all parameters, from [`memory`].
pub fn update<R: Rule>(setup: &Setup<R>, occupied: &[usize], gradients: &GradStore) -> Result<()> {
    // candle's method that sets the learning rate returns no error.
    let [learning_rate, ..] = setup.rule.numbers();
    Range::NOT_NEGATIVE.check(R::NAME, "lr", learning_rate)?;
    for group in &setup.groups {
        let rate = learning_rate * group.learning_rate_factor;
        Range::NOT_NEGATIVE.check(R::NAME, "lr * learning_rate_factor", rate)?;
    }
    for parameter in setup.updated() {
        testing::inject(Phase::Optimizer)?;
        if let Some(gradient) = setup.gradient(parameter, gradients) {
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
        // candle refuses the parameter's own memory. Another parameter's memory may be updated before it is read.
        OptimizerError::GradientShared(parameter.clone())
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
