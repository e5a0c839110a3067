//! What an optimizer cannot work with.

use std::fmt;

use candle_core::{DType, DeviceLocation, Shape};

/// An optimizer was given something it cannot work with. Nothing has changed.
///
/// Parameters are told by their names, or by their places in the list where they have none.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{AdamW, Error, OptimizerError};
///
/// let w = Var::new(0f32, &Device::Cpu)?;
/// let Err(Error::Optimizer(error)) = AdamW::new_lr(vec![w], -0.1) else { unreachable!() };
/// assert!(matches!(*error, OptimizerError::HyperParameter { name: "lr", .. }));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptimizerError {
    /// A hyper-parameter is outside its range, or not a number.
    #[error("{name} = {value} is not possible for {optimizer}: it is {allowed}")]
    HyperParameter {
        /// Whose.
        optimizer: &'static str,
        /// Which.
        name: &'static str,
        /// What was given, as it is written.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// Hyper-parameters under which other tensors would be kept than there are.
    #[error(
        "{optimizer} was built to keep {kept} for each parameter, which the new hyper-parameters do not go with: build a new one"
    )]
    Kept {
        /// Whose.
        optimizer: &'static str,
        /// What it keeps.
        kept: String,
    },
    /// Two parameters have the same name.
    #[error("two parameters are named «{name}»: state could not be told apart")]
    Name {
        /// The name.
        name: String,
    },
    /// The parameters lie on several devices.
    #[error(
        "parameter «{parameter}» is on {found:?}, the first on {expected:?}: an optimizer is of one device, so make one for each"
    )]
    Devices {
        /// The first that lies elsewhere.
        parameter: String,
        /// Where the first parameter is.
        expected: DeviceLocation,
        /// Where this one is.
        found: DeviceLocation,
    },
    /// There are no fused passes for this device.
    #[error(
        "fused optimizers run on the CPU and, with the feature `cuda`, on CUDA, not on {device:?}: use candle_nn's there"
    )]
    Device {
        /// The device.
        device: DeviceLocation,
    },
    /// A parameter that cannot be changed in one stretch.
    #[error("parameter «{parameter}» is not contiguous: make the Var from `tensor.contiguous()?`")]
    NotContiguous {
        /// Which.
        parameter: String,
    },
    /// Moments of this type are not kept.
    #[error(
        "moments in {dtype:?} are not kept for parameter «{parameter}» of {parameter_dtype:?}: they are f32 or bf16, and f64 for f64 parameters"
    )]
    Moments {
        /// For which parameter.
        parameter: String,
        /// Its type.
        parameter_dtype: DType,
        /// The type asked for.
        dtype: DType,
    },
    /// There is no such group.
    #[error("there is no group {group}: this optimizer has {groups}, counted from 0")]
    Group {
        /// Which was asked for.
        group: usize,
        /// How many there are.
        groups: usize,
    },
    /// A gradient of another shape than its parameter.
    #[error("parameter «{parameter}» has shape {expected:?} but its gradient has {found:?}")]
    GradientShape {
        /// Whose.
        parameter: String,
        /// The parameter's.
        expected: Shape,
        /// The gradient's.
        found: Shape,
    },
    /// A gradient of a type that does not go with its parameter.
    #[error(
        "parameter «{parameter}» is {expected:?} but its gradient is {found:?}: it has the parameter's type, or f32 for f16 and bf16"
    )]
    GradientDType {
        /// Whose.
        parameter: String,
        /// The parameter's.
        expected: DType,
        /// The gradient's.
        found: DType,
    },
    /// A gradient on another device than its parameter.
    #[error(
        "parameter «{parameter}» is on {expected:?} but its gradient is on {found:?}, or belongs to another handle of that device"
    )]
    GradientDevice {
        /// Whose.
        parameter: String,
        /// Where the parameter is.
        expected: DeviceLocation,
        /// Where the gradient is.
        found: DeviceLocation,
    },
    /// A gradient that is the memory of its own or of another parameter.
    #[error("the gradient of parameter «{parameter}» is a parameter's own memory: give a copy")]
    GradientShared {
        /// Whose.
        parameter: String,
    },
    /// A gradient whose memory is too scattered to be read in place.
    #[error(
        "the gradient of parameter «{parameter}» has {rank} axes that are not contiguous: make it so by `contiguous()?`"
    )]
    GradientStrides {
        /// Whose.
        parameter: String,
        /// Its axes.
        rank: usize,
    },
}

/// Saved state does not fit the optimizer that it was to be loaded into. Nothing has changed.
///
/// All that does not fit is listed, not only the first.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{AdamW, Error, ParamsAdamW, StateDict};
///
/// let w = Var::new(&[0f32, 1.], &Device::Cpu)?;
/// let mut optimizer = AdamW::new(vec![("w", w)], ParamsAdamW::default())?;
/// let Err(Error::State(error)) = optimizer.load_state(&StateDict::default()) else { unreachable!() };
/// assert_eq!(error.missing, ["w.exp_avg", "w.exp_avg_sq", "w.step"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub struct StateError {
    /// Entries that the optimizer needs and the state does not have.
    pub missing: Vec<String>,
    /// Entries that the state has and the optimizer does not know.
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
