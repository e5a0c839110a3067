//! What went wrong: this crate's [`Error`], and the meaning of any [`candle_core::Error`].
//!
//! candle has no error for memory that ran out: a driver's status is a text within one of its variants. [`Error`] is classified when it is
//! made from candle's by `?`, and [`ErrorExt`] asks the same questions of any other error.
//!
//! | question | of an [`Error`] | of any error |
//! |---|---|---|
//! | Did memory run out, so that less work may fit? | [`Error::resource_exhausted`] | [`ErrorExt::resource_exhausted`] |
//! | Is the device lost to this process? | [`Error::device_fault`] | [`ErrorExt::device_fault`] |
//! | What would help with a driver's status? | [`Error::remedy`] | [`ErrorExt::remedy`] |
//! | What is it about? | [`Error::is_batch`] and its like | |
//! | Is it my own error? | [`Error::downcast_ref`], [`Error::downcast`] | |
//!
//! # Guarantees
//! - **Types come first.** An error is known by the types in its chain of sources, and by a status name such as `CUDA_ERROR_OUT_OF_MEMORY` only
//!   where nothing but a text is left. The words "out of memory" alone do not count, because any program may write them.
//! - **Nothing is lost on the way.** An error that goes into candle's by `?` and out again is the same, with its numbers and its source;
//!   [`ErrorExt`] says what other errors around it pass on.
//! - **Nothing has changed after an error,** unless its type says so: [`WindowLost`], [`UpdateInterrupted`], [`DeviceFault`], and
//!   [`GroupError::PeerLost`].
//! - **What is not known is `None`,** never 0.
//! - **A text names the value and the remedy.** An error shows its cause in its text or as its source, not in both.

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
#[cfg(any(feature = "cuda", feature = "mpi"))]
pub(crate) use error::engine_failed;
pub use error::{Error, Invalid, Result, UpdateInterrupted, WindowLost};
pub(crate) use error::{
    Subject, different, failed_before, invalid, listed_twice, missing, no_match, not_scalar,
    nothing_to_train, untrainable,
};
pub use exhausted::{MemoryReading, ResourceExhausted};
pub(crate) use exhausted::{device_name, known};
pub use files::{BoxedError, CheckpointError, DataError, OutputError, Skipped};
pub(crate) use training::ranks_text;
pub use training::{CutCause, DependsOnCut, GroupError, StateError};
pub use unreached::UnreachedParameters;
