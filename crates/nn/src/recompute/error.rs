//! What can be wrong with a region.

use std::error::Error as StdError;
use std::io;

use candle_core::Error;

/// The closure of a [`recompute`](crate::recompute()) region did not do the same when it ran again in the backward pass: its text says
/// what differed, the number of outputs, their shapes, types or values (on a GPU only the first regions of a thread are compared), or the
/// Vars that were used.
///
/// It comes inside of candle's error, as [`of`](Self::of) finds it.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom_nn::{RecomputeError, is_recomputing, recompute};
///
/// let x = Var::ones(4, DType::F32, &Device::Cpu)?;
/// let y = recompute(x.as_tensor(), |x| x * if is_recomputing() { 2. } else { 1. })?; // differs
/// let error = y.sum_all()?.backward().unwrap_err();
/// let error = RecomputeError::of(&error).expect("of the region");
/// assert!(error.to_string().starts_with("a recomputed region returned values that differ"));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("a recomputed region {0}")]
pub struct RecomputeError(String);

impl RecomputeError {
    /// Inside an [`io::Error`]: of candle's variants that can hold any error, it is the one whose content can be downcast.
    pub(super) fn differs(text: String) -> Error {
        Error::Io(io::Error::other(Self(text)))
    }

    /// A second backward pass, after a last one.
    pub(super) fn walked_again() -> Error {
        Self::differs(
            "has freed its inputs in the backward pass that its trainer made: compute the loss again, or detach what you keep of a step"
                .to_owned(),
        )
    }

    /// Returns the one that an error of candle is; `None` if it is another error, or one with more context.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Error, Var};
    /// # use candle_headroom_nn::{RecomputeError, is_recomputing, recompute};
    /// let x = Var::ones(4, DType::F32, &Device::Cpu)?;
    /// let y = recompute(x.as_tensor(), |x| x * if is_recomputing() { 2. } else { 1. })?; // differs
    /// let error = y.sum_all()?.backward().unwrap_err();
    /// assert!(RecomputeError::of(&error).is_some());
    /// assert!(RecomputeError::of(&Error::Msg("another".to_owned())).is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn of(error: &Error) -> Option<&Self> {
        within(error)
    }
}

/// An error in the second run of a [`recompute`](crate::recompute()) region, or in its backward pass. The text is that of the error.
///
/// It comes inside of candle's error, as [`of`](Self::of) finds it.
///
/// ```
/// use candle_core::{DType, Device, Error, Var};
/// use candle_headroom_nn::{SecondRun, is_recomputing, recompute};
///
/// let x = Var::ones(4, DType::F32, &Device::Cpu)?;
/// let y = recompute(x.as_tensor(), |x| match is_recomputing() {
///     true => Err(Error::Msg("the second run fails".to_owned())),
///     false => x.exp(),
/// })?;
/// let error = y.sum_all()?.backward().unwrap_err();
/// let SecondRun(inner) = SecondRun::of(&error).expect("of the second run");
/// assert!(matches!(inner, Error::Msg(_)));
/// assert_eq!(error.to_string(), "the second run fails");
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SecondRun(pub Error);

impl SecondRun {
    /// Returns the one that an error of candle is; `None` if it is another error, or one with more context.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Error, Var};
    /// # use candle_headroom_nn::{SecondRun, is_recomputing, recompute};
    /// let x = Var::ones(4, DType::F32, &Device::Cpu)?;
    /// let y = recompute(x.as_tensor(), |x| match is_recomputing() {
    ///     true => Err(Error::Msg("the second run fails".to_owned())),
    ///     false => x.exp(),
    /// })?;
    /// let error = y.sum_all()?.backward().unwrap_err();
    /// assert!(SecondRun::of(&error).is_some());
    /// assert!(SecondRun::of(&Error::Msg("another".to_owned())).is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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
