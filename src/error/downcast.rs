//! The caller's own error type, found again inside an [`Error`].

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use super::chain::chain;
use super::error::{Error, External};

type Boxed = Box<dyn StdError + Send + Sync>;

impl Error {
    /// The error of type `T` inside this one, outermost first, through candle's wrappers, `Box`, `Arc`, [`io::Error`] and `source()`.
    ///
    /// ```
    /// use candle_core::Context;
    /// use candle_headroom::Error;
    ///
    /// #[derive(Debug, PartialEq, thiserror::Error)]
    /// #[error("sample {0} is corrupt")]
    /// struct Corrupt(usize);
    ///
    /// let wrapped = Err::<(), _>(Corrupt(3)).context("while loading").unwrap_err();
    /// assert_eq!(Error::from(wrapped).downcast_ref::<Corrupt>(), Some(&Corrupt(3)));
    /// ```
    pub fn downcast_ref<T: StdError + 'static>(&self) -> Option<&T> {
        chain(self).find_map(|error| {
            let boxed = || error.downcast_ref::<Box<T>>().map(|boxed| &**boxed);
            let shared = || error.downcast_ref::<Arc<T>>().map(|shared| &**shared);
            error.downcast_ref().or_else(boxed).or_else(shared)
        })
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
    match error {
        Ok(found) => Some(found),
        Err(error) => {
            *source = Some(error);
            None
        }
    }
}

fn from_box<T: StdError + Send + Sync + 'static>(error: Boxed) -> Result<T, Boxed> {
    let error = match error.downcast::<T>() {
        Ok(found) => return Ok(*found),
        Err(error) => error,
    };
    let error = match error.downcast::<Box<T>>() {
        Ok(found) => return Ok(**found),
        Err(error) => error,
    };
    let error = match error.downcast::<Arc<T>>() {
        Ok(found) => return Arc::try_unwrap(*found).map_err(Boxed::from),
        Err(error) => error,
    };
    let error = match error.downcast::<Error>() {
        Ok(own) => return own.downcast().map_err(Boxed::from),
        Err(error) => error,
    };
    let error = match error.downcast::<candle_core::Error>() {
        Ok(candle) => return from_candle(*candle).map_err(Boxed::from),
        Err(error) => error,
    };
    match error.downcast::<io::Error>() {
        Ok(error) => from_io(*error).map_err(Boxed::from),
        Err(error) => Err(error),
    }
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
