use std::error::Error as StdError;
use std::io;

use candle_core::{DType, Error, Shape};

/// The closure of a [`recompute`](crate::recompute()) region did not do the same when it ran again in the backward pass.
///
/// It comes inside of candle's error, as [`of`](Self::of) finds it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecomputeError {
    /// Another number of outputs.
    #[error(
        "a recomputed region returned {again} tensors after {first} in its first run: its closure may change nothing that it depends on"
    )]
    #[non_exhaustive]
    Outputs {
        /// Outputs of the first run.
        first: usize,
        /// Outputs of the second run.
        again: usize,
    },
    /// An output of another shape or type.
    #[error(
        "a recomputed region returned {again:?} after {first:?} in its first run: its closure may change nothing that it depends on, such as a key-value cache"
    )]
    #[non_exhaustive]
    Shape {
        /// The output of the first run.
        first: (Shape, DType),
        /// That of the second run.
        again: (Shape, DType),
    },
    /// Other values. On a GPU only the first regions of a thread are compared.
    #[error(
        "a recomputed region returned values that differ by up to {off:.3e} from those of its first run, which reach {scale:.3e}: use the layers of `candle_headroom::nn`, whose dropout is the same again, and seed other randomness"
    )]
    #[non_exhaustive]
    Values {
        /// The largest difference.
        off: f64,
        /// The largest value of the first run.
        scale: f64,
    },
    /// The second run used a Var of this shape that the first one did not, so its gradient has no way out.
    #[error(
        "a recomputed region used a Var of shape {0:?} that its first run did not use: make the choice of layers outside, or give the region the tensors that it depends on"
    )]
    Var(Shape),
}

impl RecomputeError {
    /// Returns the one that an error of candle is; `None` if it is another error, or one with more context.
    pub fn of(error: &Error) -> Option<&Self> {
        within(error)
    }
}

/// Inside an [`io::Error`]: of candle's variants that can hold any error, it is the one whose content can be downcast.
impl From<RecomputeError> for Error {
    fn from(error: RecomputeError) -> Self {
        Self::Io(io::Error::other(error))
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
