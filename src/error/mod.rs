//! What went wrong: this crate's [`Error`], and what any [`candle_core::Error`] means.

mod circumstances;
mod classify;
mod codes;
mod convert;
mod cuda;
mod exhausted;
mod fault;
mod input;
mod optimizer;
mod report;
mod train;
mod watch;

pub use circumstances::{Cause, Phase, Resource};
pub use convert::ErrorExt;
pub use exhausted::{MemoryReading, Remedy, ResourceExhausted};
pub use fault::DeviceFault;
pub use input::{BatchError, LossError, MemoryError, ParameterError, PolicyError};
pub use optimizer::{OptimizerError, StateError};
pub use report::{Holding, Neighbour};
pub use train::{UpdateInterrupted, WindowLost};
pub use watch::{MonitorError, OutputError};

use classify::Class;

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in this crate.
///
/// It is `Send + Sync + 'static` and two words large. By `?` it is made from a [`candle_core::Error`], which is classified on
/// the way, and becomes one again; a candle error that is neither an exhaustion nor a fault stays as it was, down to its type.
/// [`ErrorExt`] asks the same questions of a candle error.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Error;
///
/// fn forward() -> Result<(), Error> {
///     let a = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
///     a.matmul(&a)?; // the shapes do not fit: candle's own error comes through
///     Ok(())
/// }
///
/// let error = forward().unwrap_err();
/// assert!(error.resource_exhausted().is_none());
/// assert!(matches!(error, Error::Candle(_)));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something ran out of memory.
    #[error(transparent)]
    ResourceExhausted(Box<ResourceExhausted>),
    /// The device is lost to this process.
    #[error(transparent)]
    DeviceFault(Box<DeviceFault>),
    /// A batch cannot be cut into micro-batches.
    #[error(transparent)]
    Batch(Box<BatchError>),
    /// A batch policy asked for an impossible size.
    #[error(transparent)]
    Policy(Box<PolicyError>),
    /// A loss cannot be used.
    #[error(transparent)]
    Loss(Box<LossError>),
    /// The parameters or buffers given to a trainer cannot be used.
    #[error(transparent)]
    Parameter(Box<ParameterError>),
    /// An optimizer cannot work with what it was given.
    #[error(transparent)]
    Optimizer(Box<OptimizerError>),
    /// Saved state does not fit the optimizer.
    #[error(transparent)]
    State(Box<StateError>),
    /// A memory limit cannot be set.
    #[error(transparent)]
    Memory(Box<MemoryError>),
    /// The gradients accumulated so far were lost; parameters and optimizer are as they were.
    #[error(transparent)]
    WindowLost(Box<WindowLost>),
    /// The optimizer failed half-way; parameters and optimizer state may be partly updated.
    #[error(transparent)]
    UpdateInterrupted(Box<UpdateInterrupted>),
    /// A monitor cannot be started.
    #[error(transparent)]
    Monitor(Box<MonitorError>),
    /// Something cannot be written.
    #[error(transparent)]
    Output(Box<OutputError>),
    /// Any other error of candle's, or of the user's closure, unchanged.
    #[error(transparent)]
    Candle(Box<candle_core::Error>),
}

/// The same text as [`Display`](std::fmt::Display) (`{:?}` on an exhaustion is its long form), as candle's own errors do it,
/// so that an error stays readable inside [`candle_core::Error::WrappedContext`] and when `main` returns it.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ResourceExhausted(exhausted) => std::fmt::Debug::fmt(exhausted, f),
            other => std::fmt::Display::fmt(other, f),
        }
    }
}

impl Error {
    /// The exhaustion that this error is: nothing has changed, and less work may fit.
    ///
    /// A lost window or an interrupted update that was caused by an exhaustion is none; ask their `reason`.
    pub fn resource_exhausted(&self) -> Option<&ResourceExhausted> {
        match self {
            Self::ResourceExhausted(exhausted) => Some(exhausted),
            _ => None,
        }
    }

    /// The device fault that this error is.
    pub fn device_fault(&self) -> Option<&DeviceFault> {
        match self {
            Self::DeviceFault(fault) => Some(fault),
            _ => None,
        }
    }

    /// What to do about the status of the CUDA driver that this error carries, as [`ErrorExt::remedy`] tells it.
    pub fn remedy(&self) -> Option<&'static str> {
        self.class().remedy()
    }

    /// Notes what is known to hold the memory.
    pub(crate) fn holding(mut self, held: impl FnOnce() -> Vec<Holding>) -> Self {
        if let Self::ResourceExhausted(exhausted) = &mut self {
            exhausted.held = held();
        }
        self
    }

    /// Notes in which phase an exhaustion was met, unless that is known already.
    pub(crate) fn in_phase(mut self, phase: Phase) -> Self {
        if let Self::ResourceExhausted(exhausted) = &mut self {
            exhausted.phase.get_or_insert(phase);
        }
        self
    }

    /// Whether a lost device may be behind this error without its saying so: cuBLAS and its like only say that they failed.
    pub(crate) fn may_hide_fault(&self) -> bool {
        match self {
            Self::Candle(_) => matches!(self.class(), Class::Execution),
            Self::WindowLost(lost) => lost.reason.may_hide_fault(),
            Self::UpdateInterrupted(interrupted) => {
                (interrupted.reason.as_ref()).is_some_and(Self::may_hide_fault)
            }
            _ => false,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::ResourceExhausted(exhausted) => Class::Exhausted(exhausted.clone()),
            Self::DeviceFault(fault) => Class::Fault(fault.clone()),
            Self::Candle(error) => classify::classify(error),
            _ => Class::Other,
        }
    }
}
