use std::error::Error as StdError;
use std::io;

use candle_core::Error;

/// The closure of a [`recompute`](crate::recompute()) region did not do the same when it ran again in the backward pass: its text says
/// what differed, the number of outputs, their shapes, types or values (on a GPU only the first regions of a thread are compared), or the
/// Vars that were used.
///
/// It comes inside of candle's error, as [`of`](Self::of) finds it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("a recomputed region {0}")]
pub struct RecomputeError(String);

impl RecomputeError {
    /// Inside an [`io::Error`]: of candle's variants that can hold any error, it is the one whose content can be downcast.
    pub(super) fn differs(text: String) -> Error {
        Error::Io(io::Error::other(Self(text)))
    }

    /// Returns the one that an error of candle is; `None` if it is another error, or one with more context.
    pub fn of(error: &Error) -> Option<&Self> {
        within(error)
    }
}

/// An error in the second run of a [`recompute`](crate::recompute()) region, or in its backward pass. The text is that of the error.
///
/// It comes inside of candle's error, as [`of`](Self::of) finds it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SecondRun(pub Error);

impl SecondRun {
    /// Returns the one that an error of candle is; `None` if it is another error, or one with more context.
    pub fn of(error: &Error) -> Option<&Self> {
        within(error)
    }

    /// Marks an error, unless it says by itself where it happened.
    pub(super) fn mark(error: Error) -> Error {
        match RecomputeError::of(&error).is_some() || Self::of(&error).is_some() {
            true => error,
            false => Error::Io(io::Error::other(Self(error))),
        }
    }
}

fn within<E: StdError + 'static>(error: &Error) -> Option<&E> {
    match error {
        Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}
