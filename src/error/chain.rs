//! The errors inside an error, through the wrappers of candle and of std that hide their content from `source()`.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use super::error::Error;

/// No sound error is nested deeper; a `source()` that returns its own error would never end.
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
        behind::<candle_core::Error>(error)
            .or_else(|| behind::<Error>(error))
            .or_else(|| error.source())
    }
}

/// Neither `inner` nor `wrapped` is a source to candle, and its transparent variants skip their content.
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
fn behind<'a, T: StdError + 'static>(
    error: &'a (dyn StdError + 'static),
) -> Option<&'a (dyn StdError + 'static)> {
    if let Some(boxed) = error.downcast_ref::<Box<T>>() {
        return Some(&**boxed);
    }
    error.downcast_ref::<Arc<T>>().map(|shared| &**shared as _)
}
