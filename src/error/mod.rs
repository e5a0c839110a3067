//! What went wrong: this crate's [`Error`], and the meaning of any [`candle_core::Error`].

mod chain;
mod circumstances;
mod classify;
mod codes;
mod convert;
#[cfg(feature = "cuda")]
mod cuda;
// The file is named for the type that it defines.
#[allow(clippy::module_inception)]
mod error;
mod exhausted;
mod fault;
mod input;
mod memory;
mod optimizer;
mod rendering;
mod report;
mod watch;

pub use circumstances::{Cause, Phase, Resource};
pub use convert::ErrorExt;
pub use error::{Error, External, Result, UpdateInterrupted, WindowLost};
pub use exhausted::{Holding, MemoryReading, Neighbour, Remedy, ResourceExhausted};
pub use fault::DeviceFault;
pub use input::{BatchError, LossError, ParameterError, PolicyError};
pub use memory::MemoryError;
pub use optimizer::{OptimizerError, StateError};
pub use watch::{MonitorError, OutputError};
