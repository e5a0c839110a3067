//! Bad input to batches, policies, losses and trainers, each error with the wrong value and the remedy.

use candle_core::{DType, DeviceLocation, Shape};

/// A batch cannot be cut into micro-batches.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::error::BatchError;
/// use candle_headroom::{Error, process_batches};
///
/// let x = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
/// let Err(Error::Batch(error)) = process_batches(&(x, y), 2, |_| Ok(())) else { unreachable!() };
/// assert!(matches!(*error, BatchError::Lengths { part: 1, expected: 4, found: 3, .. }));
/// # Ok::<(), candle_core::Error>(())
/// ```
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
    #[error("samples {start}..{end} are not in a batch of {samples}")]
    #[non_exhaustive]
    OutOfRange {
        /// The first requested sample.
        start: usize,
        /// One past the last requested sample.
        end: usize,
        /// Samples of the batch.
        samples: usize,
    },
}

/// A batch policy was given an invalid setting, or saved state that is not its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A micro-batch, or a number of micro-batches, of zero.
    #[error("{what} must be at least 1, got 0")]
    #[non_exhaustive]
    Zero {
        /// The setting.
        what: &'static str,
    },
    /// A margin outside [0, 0.9].
    #[error("`margin` must be in [0, 0.9], got {margin}")]
    #[non_exhaustive]
    Margin {
        /// The given margin.
        margin: String,
    },
    /// Saved state of a policy cannot be used.
    #[error(
        "the saved state holds {what}: another policy saved it, or it was changed; go on without it"
    )]
    #[non_exhaustive]
    Saved {
        /// What is wrong with it.
        what: &'static str,
    },
}

impl PolicyError {
    pub(crate) fn at_least_one(what: &'static str, number: usize) -> Result<(), Self> {
        match number {
            0 => Err(Self::Zero { what }),
            _ => Ok(()),
        }
    }
}

/// A loss cannot be used.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::error::LossError;
/// use candle_headroom::{AdaptiveTrainer, Error, Sgd};
///
/// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let optimizer = Sgd::builder(vec![w.clone()]).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let x = Tensor::ones((4, 2), candle_core::DType::F32, &Device::Cpu)?;
/// let Err(Error::Loss(error)) = trainer.step(&x, |x, _| x.broadcast_mul(&w)) else { unreachable!() };
/// assert!(matches!(*error, LossError::NotScalar { .. })); // reduce it to one number first
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// The loss is not a single number.
    #[error(
        "the loss has shape {shape:?}: reduce it to one number with `mean_all()` or `sum_all()`"
    )]
    #[non_exhaustive]
    NotScalar {
        /// Its shape.
        shape: Shape,
    },
    /// The weight of a summed loss is outside its range.
    #[error("loss weight must be 0 or in [1e-30, 1e30], got {weight:?}")]
    #[non_exhaustive]
    Weight {
        /// The given weight.
        weight: f64,
    },
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
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::error::ParameterError;
/// use candle_headroom::{Error, Sgd};
///
/// let w = Var::new(0f32, &Device::Cpu)?;
/// let Err(Error::Parameter(error)) = Sgd::builder(vec![w.clone(), w]).build() else { unreachable!() };
/// assert_eq!(error.to_string(), "parameter `1` is listed twice: list each Var once");
/// assert!(matches!(*error, ParameterError::Duplicate { .. }));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// No parameter can be trained.
    #[error(
        "there is no floating-point Var to train: pass the `VarMap` or its `all_vars()` after the model was built"
    )]
    None,
    /// The same Var is in the list twice and would be updated twice.
    #[error("parameter `{parameter}` is listed twice: list each Var once")]
    #[non_exhaustive]
    Duplicate {
        /// The parameter, by its second name or place.
        parameter: String,
    },
    /// Gradients of this type cannot be accumulated.
    #[error(
        "parameter `{parameter}` has dtype {dtype:?}: gradients accumulate for f64, f32, f16 and bf16"
    )]
    #[non_exhaustive]
    DType {
        /// The parameter.
        parameter: String,
        /// Its type.
        dtype: DType,
    },
    /// A gradient has another shape than its parameter.
    #[error("parameter `{parameter}` has shape {expected:?} but its gradient has {found:?}")]
    #[non_exhaustive]
    Gradient {
        /// The parameter.
        parameter: String,
        /// Its shape.
        expected: Shape,
        /// The gradient's shape.
        found: Shape,
    },
    /// The Vars and the memory given to a trainer are on different devices.
    #[error(
        "the Vars are on {vars:?} but the memory is that of {memory:?}: build the model on `memory.device()`"
    )]
    #[non_exhaustive]
    Device {
        /// The Vars' device.
        vars: DeviceLocation,
        /// The memory's device.
        memory: DeviceLocation,
    },
    /// A buffer that is not a variable cannot be rolled back.
    #[error("buffer {index} is a tensor but not a variable: pass the Var that the layer updates")]
    #[non_exhaustive]
    NotAVariable {
        /// The buffer's place in the list.
        index: usize,
    },
    /// A buffer whose storage is not contiguous cannot be rolled back in place.
    #[error(
        "buffer {index} is not contiguous: make the Var from `tensor.contiguous()?`, so that it can be rolled back in place"
    )]
    #[non_exhaustive]
    NotContiguous {
        /// The buffer's place in the list.
        index: usize,
    },
}
