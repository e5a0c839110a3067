//! What went wrong: this crate's [`Error`], and the meaning of any [`candle_core::Error`].

mod circumstances;
mod classify;
mod codes;
#[allow(
    clippy::module_inception,
    reason = "the file is named for the type that it defines"
)]
mod error;
mod exhausted;
mod files;
#[cfg(feature = "nn")]
mod nn;
#[cfg(not(feature = "nn"))]
#[path = "without_nn.rs"]
mod nn;
mod training;
mod unreached;

#[doc(inline)]
pub use crate::environment::Neighbour;
#[cfg(feature = "nn")]
#[doc(inline)]
pub use crate::nn::RecomputeError;
pub use circumstances::{Cause, Holding, Phase, Remedy, Resource};
pub use classify::ErrorExt;
pub use codes::DeviceFault;
pub use error::{Error, Invalid, Result, UpdateInterrupted, WindowLost};
pub(crate) use error::{
    Subject, invalid, listed_twice, no_match, not_scalar, nothing_to_train, untrainable,
};
pub use exhausted::{MemoryReading, ResourceExhausted};
pub(crate) use exhausted::{device_name, known};
pub use files::{BoxedError, CheckpointError, DataError, OutputError, Skipped};
pub use training::{CutCause, GroupError, LossError, MemoryError, StateError};
pub use unreached::UnreachedParameters;
