//! The errors inside an error, and the caller's own type among them, through the wrappers of candle and of std that hide their
//! content from `source()`.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use super::error::Error;

/// Ends the search of an error whose `source()` returns itself. Real errors are nested less deeply.
const DEEPEST: usize = 128;

/// The error and everything inside it, outermost first.
pub(super) fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| inner(*error)).take(DEEPEST)
}

fn inner<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    if let Some(error) = error.downcast_ref::<candle_core::Error>() {
        inner_of_candle(error)
    } else if let Some(error) = error.downcast_ref::<io::Error>() {
        // `source()` would skip the content.
        error.get_ref().map(|inner| inner as _)
    } else {
        let candle = pointee::<candle_core::Error>(error).map(|inner| inner as _);
        let own = || pointee::<Error>(error).map(|inner| inner as _);
        candle.or_else(own).or_else(|| error.source())
    }
}

/// Candle does not return `inner` and `wrapped` from `source()`, and its transparent variants skip their content.
fn inner_of_candle(error: &candle_core::Error) -> Option<&(dyn StdError + 'static)> {
    use candle_core::Error as E;
    match error {
        E::WithBacktrace { inner, .. } | E::WithPath { inner, .. } | E::Context { inner, .. } => {
            Some(&**inner)
        }
        E::WrappedContext { wrapped, .. } => Some(&**wrapped),
        E::Cuda(inner) => Some(&**inner),
        E::Io(inner) => Some(inner),
        other => other.source(),
    }
}

/// The `T` behind a pointer: `Box<T>` and `Arc<T>` are errors too and skip their content.
fn pointee<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let boxed = error.downcast_ref::<Box<T>>().map(|boxed| &**boxed);
    boxed.or_else(|| error.downcast_ref::<Arc<T>>().map(|shared| &**shared))
}

impl Error {
    /// The error of type `T` inside this one, outermost first, through candle's wrappers, `Box`, `Arc`, [`io::Error`] and `source()`.
    pub fn downcast_ref<T: StdError + 'static>(&self) -> Option<&T> {
        chain(self).find_map(|error| error.downcast_ref().or_else(|| pointee(error)))
    }

    /// Returns the caller's error that [`external`](Self::external) carried.
    ///
    /// # Errors
    /// This error, unchanged, if it does not carry a `T`. One that is wrapped in another error, or that is the source of an
    /// exhaustion, is found by [`downcast_ref`](Self::downcast_ref) only.
    pub fn downcast<T: StdError + 'static>(self) -> Result<T, Self> {
        match self {
            Self::External(error) => match error.downcast() {
                Ok(found) => Ok(*found),
                Err(error) => Err(Self::External(Box::new(error))),
            },
            other => Err(other),
        }
    }
}
