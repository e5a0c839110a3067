//! Bad input to batches, policies, losses and trainers, each error with the wrong value and the remedy.

use std::ops::Range;

use candle_core::{DType, DeviceLocation, Shape};

/// A batch cannot be cut into micro-batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The batch has no samples.
    #[error("the batch is empty: skip it")]
    Empty,
    /// A collection without parts has no length.
    #[error("the batch has no parts: give at least one tensor")]
    NoParts,
    /// A tensor without dimensions cannot be cut.
    #[error("a 0-dimensional tensor has no samples: give it a first dimension with `unsqueeze(0)`")]
    Scalar,
    /// The parts of a batch have different numbers of samples.
    #[error(
        "part {part} of the batch holds {found} samples but the first part holds {expected}: all parts need the same first dimension"
    )]
    #[non_exhaustive]
    Lengths {
        /// The part, counted from 0; in a map, in the map's own order.
        part: usize,
        /// Samples of the first part.
        expected: usize,
        /// Samples of this part.
        found: usize,
    },
    /// A range outside the batch.
    #[error("samples {range:?} are not in a batch of {samples}")]
    #[non_exhaustive]
    OutOfRange {
        /// The requested samples.
        range: Range<usize>,
        /// Number of samples in the batch.
        samples: usize,
    },
}

/// A batch policy was given an invalid setting, or saved state that is not its own.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A setting, by its name, that counts something and is zero.
    #[error("{0} must be at least 1, got 0")]
    Zero(&'static str),
    /// A margin outside [0, 0.9].
    #[error("`margin` must be in [0, 0.9], got {0:?}")]
    Margin(f64),
    /// Saved state of a policy cannot be used; what is wrong with it.
    #[error(
        "the saved state holds {0}: another policy saved it, or it was changed; go on without it"
    )]
    Saved(&'static str),
}

impl PolicyError {
    pub(crate) fn at_least_one(what: &'static str, number: usize) -> Result<(), Self> {
        match number {
            0 => Err(Self::Zero(what)),
            _ => Ok(()),
        }
    }
}

/// A loss cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// The loss is not a single number, but has this shape.
    #[error("the loss has shape {0:?}: reduce it to one number with `mean_all()` or `sum_all()`")]
    NotScalar(Shape),
    /// The weight of a summed loss is outside its range.
    #[error("loss weight must be 0 or in [1e-30, 1e30], got {0:?}")]
    Weight(f64),
    /// A loss over no samples.
    #[error("a loss over 0 samples: give the number of samples that it was computed from")]
    NoSamples,
    /// The loss depends on no trained parameter.
    #[error(
        "no Var received a gradient from the loss: an operation without a backward pass (`softmax_last_dim`, fused norms, `detach`) lies between, or the optimizer was given other Vars than the model uses"
    )]
    Disconnected,
}

/// The parameters or buffers given to a trainer or optimizer cannot be used.
///
/// Parameters have the names that they were given with, or else their place in the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// No parameter can be trained.
    #[error(
        "there is no floating-point Var to train: pass the `VarMap` or its `all_vars()` after the model was built"
    )]
    None,
    /// The same Var is in the list twice, the second time under this name, and would be updated twice.
    #[error("parameter `{0}` is listed twice: list each Var once")]
    Duplicate(String),
    /// Gradients of this type cannot be accumulated.
    #[error("parameter `{parameter}` is {dtype:?}: gradients accumulate in f64, f32, f16 and bf16")]
    #[non_exhaustive]
    DType {
        /// The parameter.
        parameter: String,
        /// Its type.
        dtype: DType,
    },
    /// The Vars and the memory given to a trainer are on different devices.
    #[error(
        "the Vars are on {vars:?}, the memory is of {memory:?}: build the model on `memory.device()`"
    )]
    #[non_exhaustive]
    Device {
        /// The Vars' device.
        vars: DeviceLocation,
        /// The memory's device.
        memory: DeviceLocation,
    },
    /// The buffer at this place in the list is not a variable and cannot be rolled back.
    #[error("buffer {0} is a tensor but not a variable: pass the Var that the layer updates")]
    NotAVariable(usize),
    /// The storage of the buffer at this place in the list is not contiguous and cannot be rolled back in place.
    #[error("buffer {0} is not contiguous: make the Var from `tensor.contiguous()?`")]
    NotContiguous(usize),
}
