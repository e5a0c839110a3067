//! Errors of optimizers.

use candle_core::{DType, DeviceLocation, Shape};

/// An optimizer was given something that it cannot work with. Nothing has changed. Errors name parameters, those without a
/// name by their place in the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptimizerError {
    /// A hyper-parameter is outside its range.
    #[error("`{name}` of {optimizer} must be {allowed}, got {value}")]
    #[non_exhaustive]
    HyperParameter {
        /// The optimizer.
        optimizer: &'static str,
        /// The hyper-parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are possible.
        allowed: &'static str,
    },
    /// Other hyper-parameters would need other state than there is.
    #[error("{optimizer} keeps {kept}, not what these hyper-parameters need: build a new one")]
    #[non_exhaustive]
    Kept {
        /// The optimizer.
        optimizer: &'static str,
        /// The names of the tensors that it keeps for each parameter.
        kept: String,
    },
    /// Two parameters have this name, so that saved state could not tell them apart.
    #[error("two parameters have the name `{0}`: give each its own")]
    Name(String),
    /// The parameters are on several devices.
    #[error("parameter `{parameter}` is on {found:?}, not {expected:?}: use an optimizer for each")]
    #[non_exhaustive]
    Devices {
        /// The first parameter on another device.
        parameter: String,
        /// The device of the first parameter.
        expected: DeviceLocation,
        /// The device of this one.
        found: DeviceLocation,
    },
    /// There are no fused passes for this device.
    #[error(
        "fused optimizers run on the CPU and, with the feature `cuda`, on CUDA, not on {0:?}: use candle_nn's there"
    )]
    Device(DeviceLocation),
    /// A parameter, by its name, is not contiguous.
    #[error("parameter `{0}` is not contiguous: make the Var from `tensor.contiguous()?`")]
    NotContiguous(String),
    /// Moments cannot have this type.
    #[error(
        "moments of parameter `{parameter}`, which is {parameter_dtype:?}, cannot be {dtype:?}: they are f32, bf16 or of 8 bits, and f64 for f64 parameters"
    )]
    #[non_exhaustive]
    Moments {
        /// The parameter.
        parameter: String,
        /// Its type.
        parameter_dtype: DType,
        /// The type that was asked for; `U8` for moments of 8 bits.
        dtype: DType,
    },
    /// Stochastic rounding was asked for, and a parameter, by its name, is f16.
    #[error(
        "stochastic rounding is for bf16 parameters, and `{0}` is f16: use `master_weights()` with a loss scale"
    )]
    Rounding(String),
    /// There is no such group.
    #[error("there is no group {group}: the optimizer has {groups}, counted from 0")]
    #[non_exhaustive]
    Group {
        /// The index that was asked for.
        group: usize,
        /// The number of groups.
        groups: usize,
    },
    /// The optimizer has a loss scale, and no loss was scaled since its last update.
    #[error(
        "the optimizer has a loss scale, but the loss was not scaled: differentiate `optimizer.scale_loss(&loss)?`, or call `backward_step`"
    )]
    Unscaled,
    /// A gradient does not have its parameter's shape.
    #[error("the gradient of parameter `{parameter}` has shape {found:?}, not {expected:?}")]
    #[non_exhaustive]
    GradientShape {
        /// The parameter.
        parameter: String,
        /// The parameter's shape.
        expected: Shape,
        /// The gradient's shape.
        found: Shape,
    },
    /// A gradient has a type that does not fit its parameter.
    #[error(
        "the gradient of parameter `{parameter}` is {found:?}: it must be {expected:?} as the parameter, or f32 if that is f16 or bf16"
    )]
    #[non_exhaustive]
    GradientDType {
        /// The parameter.
        parameter: String,
        /// The parameter's type.
        expected: DType,
        /// The gradient's type.
        found: DType,
    },
    /// A gradient is on another device than its parameter, or on another handle of the same device.
    #[error("parameter `{parameter}` is on {expected:?}, its gradient on {found:?}")]
    #[non_exhaustive]
    GradientDevice {
        /// The parameter.
        parameter: String,
        /// The parameter's device.
        expected: DeviceLocation,
        /// The gradient's device.
        found: DeviceLocation,
    },
    /// The gradient of this parameter shares the memory of a parameter.
    #[error("the gradient of parameter `{0}` is a parameter's own memory: pass a copy")]
    GradientShared(String),
    /// The optimizer keeps state for whole parameters alone.
    #[error("{optimizer} cannot be sharded over ranks: {reason}")]
    #[non_exhaustive]
    NotSharded {
        /// The optimizer.
        optimizer: String,
        /// Why, with what helps.
        reason: &'static str,
    },
    /// A shard has a range of elements that cannot be updated by itself.
    #[error(
        "elements {start}..{end} of parameter `{parameter}` cannot be a piece of a shard: {reason}"
    )]
    #[non_exhaustive]
    Piece {
        /// The parameter.
        parameter: String,
        /// The first element of the range.
        start: usize,
        /// The element behind the last one.
        end: usize,
        /// Why, with what helps.
        reason: String,
    },
    /// The optimizer is sharded, and its shard does not list this parameter, which is not frozen.
    #[error(
        "the shard does not list parameter `{0}`: call `shard` with the ranges of all parameters that are not frozen, and none where this rank owns nothing"
    )]
    Unlisted(String),
    /// A parameter was thawed in a trainer whose optimizer is sharded.
    #[error(
        "parameter `{0}` was thawed, and a sharded optimizer keeps no state for it: thaw before the trainer is built, or save a checkpoint, build a new trainer with the group thawed, and resume"
    )]
    Thawed(String),
    /// The shard has elements whose state another rank holds.
    #[error(
        "the state of elements {start}..{end} of parameter `{parameter}` is not on this rank: pass `shard` the ranks' states, put together by `StateDict::merge`"
    )]
    #[non_exhaustive]
    Elsewhere {
        /// The parameter.
        parameter: String,
        /// The first element of the range.
        start: usize,
        /// The element behind the last one.
        end: usize,
    },
    /// The states of several ranks do not make a whole, for this reason.
    #[error(
        "the ranks' states cannot be put together: {0}; pass those of all ranks, taken after the same update"
    )]
    Merge(String),
    /// The optimizer is sharded, and its updates need a sum over the gradients of all ranks.
    #[error(
        "a sharded optimizer with clipping by norm, a loss scale or `skip_non_finite` needs a sum over the gradients of all ranks: let a trainer with `.group(&group)` make its updates"
    )]
    Unmeasured,
    /// A gradient has too many axes that are not contiguous.
    #[error("the gradient of `{parameter}` has {rank} non-contiguous axes: make it contiguous")]
    #[non_exhaustive]
    GradientStrides {
        /// The parameter.
        parameter: String,
        /// The number of axes.
        rank: usize,
    },
}

/// Saved state does not fit the optimizer; everything that does not fit is listed. Nothing has changed.
#[derive(Debug, Clone, Default, PartialEq, thiserror::Error)]
#[error(
    "the saved state does not fit this optimizer{}{}{}",
    list("missing", .missing), list("unexpected", .unexpected), list("unfit", .unfit)
)]
#[non_exhaustive]
pub struct StateError {
    /// Tensors that the optimizer needs and the state does not have.
    pub missing: Vec<String>,
    /// Tensors that the state has and the optimizer does not know.
    pub unexpected: Vec<String>,
    /// Entries that are not what the optimizer needs, each with what is wrong.
    pub unfit: Vec<String>,
}

impl StateError {
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.unfit.is_empty()
    }
}

fn list(what: &str, entries: &[String]) -> String {
    match entries {
        [] => String::new(),
        _ => format!("; {what}: {}", entries.join(", ")),
    }
}
