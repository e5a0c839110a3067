//! Errors of optimizers.

use std::fmt;

use candle_core::{DType, DeviceLocation, Shape};

/// An optimizer was given something that it cannot work with. Nothing has changed.
///
/// Errors name parameters; a parameter without a name has its place in the list.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::error::OptimizerError;
/// use candle_headroom::{AdamW, Error};
///
/// let w = Var::new(0f32, &Device::Cpu)?;
/// let Err(Error::Optimizer(error)) = AdamW::builder(vec![w]).learning_rate(-0.1).build() else { unreachable!() };
/// assert!(matches!(*error, OptimizerError::HyperParameter { name: "lr", .. }));
/// assert_eq!(error.to_string(), "`lr` of AdamW must be finite and at least 0, got -0.1");
/// # Ok::<(), candle_core::Error>(())
/// ```
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
    #[error(
        "the new hyper-parameters of {optimizer} need other state than it keeps for each parameter ({kept}): build a new optimizer"
    )]
    #[non_exhaustive]
    Kept {
        /// The optimizer.
        optimizer: &'static str,
        /// The names of the tensors that it keeps.
        kept: String,
    },
    /// Two parameters have the same name, so that saved state could not tell them apart.
    #[error("two parameters have the name `{name}`: give each its own")]
    #[non_exhaustive]
    Name {
        /// The name.
        name: String,
    },
    /// The parameters are on several devices.
    #[error(
        "parameter `{parameter}` is on {found:?}, the first one on {expected:?}: build one optimizer for each device"
    )]
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
        "fused optimizers run on the CPU and, with the feature `cuda`, on CUDA, not on {device:?}: use candle_nn's there"
    )]
    #[non_exhaustive]
    Device {
        /// The device.
        device: DeviceLocation,
    },
    /// A parameter is not contiguous.
    #[error("parameter `{parameter}` is not contiguous: make the Var from `tensor.contiguous()?`")]
    #[non_exhaustive]
    NotContiguous {
        /// The parameter.
        parameter: String,
    },
    /// Moments cannot have this type.
    #[error(
        "moments of parameter `{parameter}`, which is {parameter_dtype:?}, cannot be {dtype:?}: they are f32 or bf16, and f64 for f64 parameters"
    )]
    #[non_exhaustive]
    Moments {
        /// The parameter.
        parameter: String,
        /// Its type.
        parameter_dtype: DType,
        /// The type that was asked for.
        dtype: DType,
    },
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
        "the optimizer has a loss scale, but the gradients are of a loss that was not scaled: differentiate `optimizer.scale_loss(&loss)?`, or call `backward_step`"
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
    /// A gradient is on another device than its parameter.
    #[error(
        "the gradient of parameter `{parameter}` is on {found:?}, the parameter on {expected:?} (or on another handle of that device)"
    )]
    #[non_exhaustive]
    GradientDevice {
        /// The parameter.
        parameter: String,
        /// The parameter's device.
        expected: DeviceLocation,
        /// The gradient's device.
        found: DeviceLocation,
    },
    /// A gradient shares the memory of a parameter.
    #[error("the gradient of parameter `{parameter}` is a parameter's own memory: pass a copy")]
    #[non_exhaustive]
    GradientShared {
        /// The parameter.
        parameter: String,
    },
    /// A gradient has too many axes that are not contiguous.
    #[error(
        "the gradient of parameter `{parameter}` has {rank} axes that are not contiguous: call `contiguous()?` on it"
    )]
    #[non_exhaustive]
    GradientStrides {
        /// The parameter.
        parameter: String,
        /// The number of axes.
        rank: usize,
    },
}

/// Saved state does not fit the optimizer. Nothing has changed.
///
/// It lists everything that does not fit.
#[derive(Debug, Clone, Default, PartialEq, thiserror::Error)]
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

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the saved state does not fit this optimizer")?;
        for (what, entries) in [
            ("missing", &self.missing),
            ("unexpected", &self.unexpected),
            ("unfit", &self.unfit),
        ] {
            if !entries.is_empty() {
                write!(f, "; {what}: {}", entries.join(", "))?;
            }
        }
        Ok(())
    }
}
