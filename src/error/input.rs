//! Bad input, each with the value that is wrong and what to do.

use bytesize::ByteSize;
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
/// assert_eq!(*error, BatchError::Lengths { part: 1, expected: 4, found: 3 });
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is no sample in the batch.
    #[error("the batch is empty: skip it")]
    Empty,
    /// A collection without parts has no length.
    #[error("the batch has no parts: give at least one tensor")]
    NoParts,
    /// A tensor without dimensions cannot be cut.
    #[error("a 0-dimensional tensor has no samples: give it a first dimension with `unsqueeze(0)`")]
    Scalar,
    /// The parts of a batch disagree in their number of samples.
    #[error(
        "part {part} of the batch holds {found} samples but the first part holds {expected}: all parts need the same first dimension"
    )]
    Lengths {
        /// Which part, counted from 0; in a map, in the map's own order.
        part: usize,
        /// The first part's samples.
        expected: usize,
        /// This part's samples.
        found: usize,
    },
    /// A range outside the batch was asked for.
    #[error("samples {start}..{end} are not in a batch of {samples}")]
    OutOfRange {
        /// First sample asked for.
        start: usize,
        /// One past the last sample asked for.
        end: usize,
        /// The samples that there are.
        samples: usize,
    },
}

/// A batch policy asked for an impossible micro-batch, or was given an impossible size.
///
/// ```
/// use candle_headroom::batch::Fixed;
/// use candle_headroom::error::PolicyError;
/// use candle_headroom::Error;
///
/// let Err(Error::Policy(error)) = Fixed::new(0) else { unreachable!() };
/// assert!(matches!(*error, PolicyError::Zero { .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The size does not lie between one sample and what is left of the batch.
    #[error(
        "the policy asked for a micro-batch of {size} with {remaining} samples left: a size lies between 1 and what is left"
    )]
    Size {
        /// What the policy asked for, in samples.
        size: usize,
        /// What is left of the batch, in samples.
        remaining: usize,
    },
    /// A micro-batch, or a number of micro-batches, of zero.
    #[error("{what} must be at least 1, not 0")]
    Zero {
        /// What was given as zero.
        what: &'static str,
    },
    /// A part of the room that cannot be left free.
    #[error("a margin of {margin} leaves no room: give a number from 0 up to 0.9")]
    Margin {
        /// The margin, as it was written.
        margin: String,
    },
    /// A factor that makes nothing smaller, or nothing of it.
    #[error("a factor of {factor} makes no smaller size: give a number above 0 and below 1")]
    Factor {
        /// The factor, as it was written.
        factor: String,
    },
    /// Saved state of a policy cannot be used.
    #[error(
        "the saved sizes hold {what}: they were not saved by this policy, or were changed; go on without them"
    )]
    Saved {
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A loss cannot be used.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::error::LossError;
/// use candle_headroom::{Error, GradientAccumulator};
///
/// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let mut accumulator = GradientAccumulator::new(vec![w.clone()]).unwrap();
/// let Err(Error::Loss(error)) = accumulator.add(w.sqr()?, 1) else { unreachable!() };
/// assert!(matches!(*error, LossError::NotScalar { .. })); // reduce it first
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// The loss is not one number.
    #[error(
        "the loss has shape {shape:?}: reduce it to one number with `mean_all()` or `sum_all()`"
    )]
    NotScalar {
        /// Its shape.
        shape: Shape,
    },
    /// The weight cannot weigh anything.
    #[error("a loss weighs {weight:?}: a weight is 0, or lies between 1e-30 and 1e30")]
    Weight {
        /// The weight that was given.
        weight: f64,
    },
    /// A loss over no samples.
    #[error("a loss over 0 samples: give the number of samples it was computed from")]
    NoSamples,
    /// The loss depends on no Var that is to be trained.
    #[error(
        "no Var received a gradient from the loss: an operation without a backward pass (`softmax_last_dim`, fused norms, `detach`) lies between, or the trainer was given other Vars than the model uses"
    )]
    Disconnected,
}

/// The parameters or buffers given to a trainer cannot be used.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::error::ParameterError;
/// use candle_headroom::{Error, GradientAccumulator};
///
/// let w = Var::new(0f32, &Device::Cpu)?;
/// let Err(Error::Parameter(error)) = GradientAccumulator::new(vec![w.clone(), w]) else { unreachable!() };
/// assert_eq!(*error, ParameterError::Duplicate { first: 0, second: 1 });
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// None of them can be trained.
    #[error(
        "there is no floating-point Var to train: pass `varmap.all_vars()` after the model was built"
    )]
    None,
    /// The same Var stands in the list twice and would be updated twice.
    #[error("parameter `{second}` is parameter `{first}` again: list each Var once")]
    Duplicate {
        /// Its name.
        first: String,
        /// Its name where it is listed again.
        second: String,
    },
    /// The gradients of this type cannot be accumulated.
    #[error(
        "parameter `{parameter}` has dtype {dtype:?}: gradients accumulate for f64, f32, f16 and bf16"
    )]
    DType {
        /// Its name.
        parameter: String,
        /// Its type.
        dtype: DType,
    },
    /// A gradient does not fit its Var.
    #[error("parameter `{parameter}` has shape {expected:?} but its gradient has {found:?}")]
    Gradient {
        /// Its name.
        parameter: String,
        /// The Var's shape.
        expected: Shape,
        /// The gradient's shape.
        found: Shape,
    },
    /// The Vars and the memory given to a trainer are of different devices.
    #[error(
        "the parameters are on {parameters:?} but the memory is that of {memory:?}: build the model on `memory.device()`"
    )]
    Device {
        /// The parameters' device.
        parameters: DeviceLocation,
        /// Whose memory was given.
        memory: DeviceLocation,
    },
    /// A buffer that is not a variable cannot be rolled back.
    #[error(
        "buffer {index} is a tensor but no variable, so it cannot be rolled back: name the Var that the layer updates"
    )]
    NotAVariable {
        /// Which buffer.
        index: usize,
    },
    /// A buffer whose storage is not contiguous cannot be rolled back in place.
    #[error("buffer {index} is not contiguous, so it cannot be rolled back in place")]
    NotContiguous {
        /// Which buffer.
        index: usize,
    },
}

/// A memory limit cannot be set.
///
/// ```
/// use candle_headroom::error::MemoryError;
/// use candle_headroom::memory::Limit;
/// use candle_headroom::{DeviceMemory, Error};
///
/// // This program has not installed the tracking allocator, so there is nothing to limit.
/// let Err(Error::Memory(error)) = DeviceMemory::host().limit(Limit::Auto).open() else { unreachable!() };
/// assert_eq!(*error, MemoryError::AllocatorNotInstalled);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Host memory is counted by the allocator, and it is not installed.
    #[error(
        "a limit on host memory needs the tracking allocator; add these two lines to the program:\n    #[global_allocator]\n    static ALLOCATOR: candle_headroom::TrackingAllocator = candle_headroom::TrackingAllocator::system();"
    )]
    AllocatorNotInstalled,
    /// The limit is already exceeded.
    #[error("a limit of {} is below the {} in use already: raise it, or set it before building the model", ByteSize(*.limit), ByteSize(*.in_use))]
    BelowUse {
        /// The limit asked for, in bytes.
        limit: u64,
        /// In use already, in bytes.
        in_use: u64,
    },
    /// The machine does not say how much memory there is.
    #[error("the available memory cannot be read on this machine: give the limit in bytes")]
    Undetermined,
    /// The limit leaves a GPU's pool no room at all.
    #[error("a limit of {} is too small: with what the pool holds and cannot give back, and the 2 MiB that a GPU maps at once, it is at least {}", ByteSize(*.limit), ByteSize(*.least))]
    TooSmall {
        /// The limit asked for, in bytes.
        limit: u64,
        /// The smallest that could be set now, in bytes.
        least: u64,
    },
    /// A fraction is not above 0 and at most 1.
    #[error("a limit of {fraction} of the memory is none: give a number above 0 and at most 1")]
    Fraction {
        /// The fraction asked for, as it was written.
        fraction: String,
    },
    /// Memory of the same device is open with another limit.
    #[error(
        "the memory of {device:?} is open already with {}, not {}; a device has one limit in a process: share the handle, or change it with `set_limit`",
        describe(*.open),
        describe(*.asked)
    )]
    AlreadyOpen {
        /// The device.
        device: DeviceLocation,
        /// The limit in force, in bytes; `None` without one.
        open: Option<u64>,
        /// The limit asked for, in bytes.
        asked: Option<u64>,
    },
    /// Memory of the same device is open with another growth.
    #[error(
        "the memory of CUDA device {ordinal} is open already with Growth::{open}, not {asked}; drop its handles first, or share them"
    )]
    OtherGrowth {
        /// The device, as CUDA numbers it.
        ordinal: usize,
        /// The growth in force, as it is written.
        open: String,
        /// The growth asked for.
        asked: String,
    },
    /// The program was built without CUDA.
    #[error(
        "CUDA device {ordinal} cannot be opened: candle-headroom was built without its feature `cuda` (`cargo build --features cuda`)"
    )]
    NotBuilt {
        /// The device asked for.
        ordinal: usize,
    },
    /// There is no such device.
    #[error(
        "there is no CUDA device {ordinal}: the driver shows {count} (CUDA_VISIBLE_DEVICES may hide others), numbered from 0"
    )]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver does not let this program have the device, or shows none at all.
    #[error(
        "CUDA device {ordinal} cannot be opened, the driver answers {status}: see whether `nvidia-smi` lists it, and whether CUDA_VISIBLE_DEVICES hides it"
    )]
    Unavailable {
        /// The device asked for.
        ordinal: usize,
        /// The driver's status code, by its name.
        status: String,
    },
    /// The device has no stream-ordered memory pools.
    #[error(
        "CUDA device {ordinal} does not support memory pools, so that nothing can be limited or counted on it: use `Device::new_cuda({ordinal})` without a `DeviceMemory`"
    )]
    NoPools {
        /// The device.
        ordinal: usize,
    },
    /// `Growth::Preallocate` could not take all at once.
    #[error("{} cannot be taken at once, {} are free on the device: lower the limit, or use `Growth::OnDemand`", ByteSize(*.bytes), ByteSize(*.free))]
    Preallocate {
        /// What was to be taken, in bytes.
        bytes: u64,
        /// What the driver said was free, in bytes.
        free: u64,
    },
}

fn describe(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("a limit of {}", ByteSize(limit)),
        None => "no limit".to_owned(),
    }
}
