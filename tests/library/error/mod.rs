//! [`Error`]: the meaning of every candle error, the ways into and out of it, and its texts.

mod classified;
mod round_trips;
mod sources;
mod texts;
mod unreached;
mod wrappers;

use std::backtrace::Backtrace;
use std::error::Error as StdError;

use candle_core::{Context, Error as CandleError};
use candle_headroom::error::{Cause, Phase, Resource};
use candle_headroom::{DeviceFault, Error, ErrorExt, ResourceExhausted};

/// A user's own error around a candle error.
#[derive(Debug, thiserror::Error)]
enum UserError {
    #[error("training failed")]
    Candle(#[from] CandleError),
    #[error("training failed")]
    Headroom(#[from] Error),
    #[error("the file says CUDA-error: out of memory")]
    Unrelated,
    #[error("unknown token CUDA_ERROR_OUT_OF_MEMORY")]
    Names,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("sample {0} is corrupt")]
struct Corrupt(u32);

fn cuda(text: &str) -> CandleError {
    CandleError::Cuda(text.to_owned().into())
}

fn oom() -> CandleError {
    cuda("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")
}

fn wrapped_context(error: impl std::error::Error + Send + Sync + 'static) -> CandleError {
    Err::<(), _>(error).context("while training").unwrap_err()
}

/// An exhaustion with details that no text has.
fn detailed() -> Error {
    let mut exhausted = ResourceExhausted::new(Resource::PinnedMemory, Cause::Fragmented);
    exhausted.phase = Some(Phase::Load);
    exhausted.bytes.free = Some(12345);
    exhausted.into()
}

fn candle() -> CandleError {
    detailed().into()
}

fn with_backtrace(inner: CandleError) -> CandleError {
    CandleError::WithBacktrace {
        inner: Box::new(inner),
        backtrace: Box::new(Backtrace::force_capture()),
    }
}
