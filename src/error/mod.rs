//! What went wrong: this crate's [`Error`], and the meaning of any [`candle_core::Error`].

mod chain;
mod circumstances;
mod class;
mod classify;
mod codes;
mod convert;
// The file is named for the type that it defines.
#[allow(clippy::module_inception)]
mod error;
mod exhausted;
mod fault;
mod holding;
mod input;
mod memory;
mod optimizer;
mod report;
mod watch;

pub use circumstances::{Cause, Phase, Resource};
pub use convert::ErrorExt;
pub use error::{BoxedError, Error, Result, UpdateInterrupted, WindowLost};
pub use exhausted::{MemoryReading, ResourceExhausted};
pub(crate) use exhausted::{device_name, known};
pub use fault::DeviceFault;
pub use holding::{Holding, Neighbour, Remedy};
pub use input::{BatchError, LossError, ParameterError, PolicyError};
pub use memory::MemoryError;
pub use optimizer::{OptimizerError, StateError};
pub use watch::{MonitorError, OutputError};
