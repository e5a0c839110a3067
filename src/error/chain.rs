//! The errors inside an error, and the caller's own type among them, through the wrappers of candle and of std that hide their
//! content from `source()`.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use super::error::{Error, External};

type Boxed = Box<dyn StdError + Send + Sync>;

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

    /// Takes the caller's error of type `T` out of this one, through candle's wrappers, `Box` and [`io::Error`].
    ///
    /// # Errors
    /// This error, unchanged, if no `T` is in it or the `T` is shared or belongs to another error that names it as its source:
    /// [`downcast_ref`](Self::downcast_ref) still finds it.
    pub fn downcast<T: StdError + Send + Sync + 'static>(self) -> Result<T, Self> {
        match self {
            Self::External(external) => {
                from_box(external.0).map_err(|error| Self::External(Box::new(External(error))))
            }
            Self::Candle(error) => from_candle(*error).map_err(|error| Self::Candle(error.into())),
            Self::ResourceExhausted(mut exhausted) => {
                from_source(&mut exhausted.source).ok_or(Self::ResourceExhausted(exhausted))
            }
            Self::DeviceFault(mut fault) => {
                from_source(&mut fault.source).ok_or(Self::DeviceFault(fault))
            }
            other => Err(other),
        }
    }
}

fn from_source<T: StdError + Send + Sync + 'static>(
    source: &mut Option<Arc<candle_core::Error>>,
) -> Option<T> {
    let error = match Arc::try_unwrap(source.take()?) {
        Ok(error) => from_candle(error).map_err(Arc::new),
        Err(shared) => Err(shared),
    };
    error.map_err(|error| *source = Some(error)).ok()
}

/// The content of a box of the given type, or goes on with the box.
macro_rules! unbox {
    ($error:ident as $content:ty, $found:ident => $value:expr) => {
        let $error = match $error.downcast::<$content>() {
            Ok($found) => return $value,
            Err(error) => error,
        };
    };
}

fn from_box<T: StdError + Send + Sync + 'static>(error: Boxed) -> Result<T, Boxed> {
    unbox!(error as T, found => Ok(*found));
    unbox!(error as Box<T>, found => Ok(**found));
    unbox!(error as Arc<T>, found => Arc::try_unwrap(*found).map_err(Boxed::from));
    unbox!(error as Error, own => own.downcast().map_err(Boxed::from));
    unbox!(error as candle_core::Error, candle => from_candle(*candle).map_err(Boxed::from));
    unbox!(error as io::Error, io => from_io(*io).map_err(Boxed::from));
    Err(error)
}

fn from_io<T: StdError + Send + Sync + 'static>(error: io::Error) -> Result<T, io::Error> {
    let kind = error.kind();
    if error.get_ref().is_none() {
        return Err(error);
    }
    match error.into_inner() {
        Some(inner) => from_box(inner).map_err(|inner| io::Error::new(kind, inner)),
        None => Err(kind.into()),
    }
}

fn from_candle<T: StdError + Send + Sync + 'static>(
    error: candle_core::Error,
) -> Result<T, candle_core::Error> {
    use candle_core::Error as E;
    match error {
        E::WithBacktrace { inner, backtrace } => {
            from_candle(*inner).map_err(|inner| E::WithBacktrace {
                inner: Box::new(inner),
                backtrace,
            })
        }
        E::WithPath { inner, path } => from_candle(*inner).map_err(|inner| E::WithPath {
            inner: Box::new(inner),
            path,
        }),
        E::Context { inner, context } => from_candle(*inner).map_err(|inner| E::Context {
            inner: Box::new(inner),
            context,
        }),
        E::WrappedContext { wrapped, context } => {
            from_box(wrapped).map_err(|wrapped| E::WrappedContext { wrapped, context })
        }
        E::Cuda(inner) => from_box(inner).map_err(E::Cuda),
        E::Io(inner) => from_io(inner).map_err(E::Io),
        other => Err(other),
    }
}
