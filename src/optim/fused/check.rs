use candle_core::backprop::GradStore;
use candle_core::{
    CpuStorage, CudaStorage, DType, InplaceOp2, Layout, MetalStorage, Result as CandleResult,
};

use super::group::GroupOptions;
use super::parameter::{Parameter, gradient};
use crate::error::{OptimizerError, Phase, Result};
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
    (rule.hyper_parameters().into_iter())
        .try_for_each(|hyper| hyper_parameter(R::NAME, hyper.name, hyper.value, hyper.range))
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
    parameters: &[Parameter],
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
        // The last thing that candle can have against it is that both lie in the same memory.
        if parameter.handle.inplace_op2(gradient, &Look).is_err() {
            return Err(OptimizerError::GradientShared { parameter: name() }.into());
        }
    }
    Ok(())
}

/// An operation that changes nothing: candle locks and compares what a real one would be given.
struct Look;

impl InplaceOp2 for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> CandleResult<()> {
        Ok(())
    }

    fn cuda_fwd(
        &self,
        _: &mut CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> CandleResult<()> {
        Ok(())
    }

    fn metal_fwd(
        &self,
        _: &mut MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> CandleResult<()> {
        Ok(())
    }
}
