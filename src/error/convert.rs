//! Into and out of [`candle_core::Error`], and the questions that a program asks of any error.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use super::classify::{AnyError, chain, classify, pointee};
use super::codes::{Class, DeviceFault};
use super::data::BoxedError;
use super::error::Error;
use super::exhausted::ResourceExhausted;
use super::nn;

/// Questions about any error: candle's, the caller's own, or one in an `anyhow::Error`.
///
/// The search follows `source()` and looks through candle's wrappers, `Box`, `Arc`, [`io::Error`] and `#[error(transparent)]` enums,
/// with `RUST_BACKTRACE` set or not. Such an enum passes only the text of a [`ResourceExhausted`] on: what ran out, in which phase, and why,
/// without the numbers.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::ErrorExt;
///
/// if let Err(error) = Tensor::zeros((1024, 1024), DType::F32, &Device::Cpu) {
///     match error.resource_exhausted() {
///         Some(exhausted) => eprintln!("too large for this device: {exhausted}"),
///         None => eprintln!("another error: {error}"),
///     }
/// }
/// ```
pub trait ErrorExt {
    /// The exhaustion that this error is or contains.
    ///
    /// `UpdateInterrupted` and `WindowLost` do not count as exhaustion even when caused by it.
    ///
    /// Where only a text is left, it counts by a status name such as `CUDA_ERROR_OUT_OF_MEMORY`, or as that of a [`ResourceExhausted`], not by
    /// the words "out of memory". Its numbers are not known then: all fields of [`bytes`](ResourceExhausted::bytes) are `None`.
    fn resource_exhausted(&self) -> Option<ResourceExhausted>;

    /// The device fault that this error is or contains: no retry can succeed, and a new process has to go on.
    ///
    /// ```
    /// use candle_headroom::ErrorExt;
    ///
    /// let text = "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")";
    /// let fault = candle_core::Error::msg(text).device_fault().expect("a sticky fault");
    /// assert_eq!((fault.name, fault.code), ("CUDA_ERROR_ILLEGAL_ADDRESS", 700));
    /// ```
    fn device_fault(&self) -> Option<DeviceFault>;

    /// The remedy for the CUDA driver's status that this error is or contains, such as a driver older than the kernels; from the
    /// table of [`Environment::check`](crate::Environment::check). `None` for an unknown status and for exhaustions, which have
    /// remedies of their own.
    ///
    /// ```
    /// use candle_headroom::ErrorExt;
    ///
    /// let text = "DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"unsupported toolchain\")";
    /// let error = candle_core::Error::msg(text);
    /// println!("{error}: {}", error.remedy().expect("a status of the table"));
    /// ```
    fn remedy(&self) -> Option<&'static str>;
}

macro_rules! any_error {
    ($($error:ty),+) => {$(
        impl ErrorExt for $error {
            fn resource_exhausted(&self) -> Option<ResourceExhausted> {
                match classify(self) {
                    Class::Exhausted(exhausted) => Some(*exhausted),
                    _ => None,
                }
            }

            fn device_fault(&self) -> Option<DeviceFault> {
                match classify(self) {
                    Class::Fault(fault) => Some(*fault),
                    _ => None,
                }
            }

            fn remedy(&self) -> Option<&'static str> {
                match classify(self) {
                    Class::Fault(fault) => Some(fault.remedy),
                    Class::Setup(status) => Some(status.remedy),
                    _ => None,
                }
            }
        }
    )+};
}

any_error!(candle_core::Error, AnyError, dyn StdError + Send + Sync);

impl Error {
    /// Carries the caller's own error through a closure that returns candle's [`Result`](candle_core::Result).
    ///
    /// An exhaustion or a device fault inside it is treated as such; any other error comes back from the trainer at once.
    /// [`downcast_ref`](Self::downcast_ref) and [`downcast`](Self::downcast) give it back with its type.
    ///
    /// ```
    /// use std::num::ParseIntError;
    ///
    /// use candle_headroom::Error;
    ///
    /// // What a closure of `trainer.step` returns, which has candle's result.
    /// fn label(text: &str) -> candle_core::Result<u32> {
    ///     let label = text.parse::<u32>().map_err(Error::external)?;
    ///     Ok(label)
    /// }
    ///
    /// let error = Error::from(label("12x").unwrap_err());
    /// let own: ParseIntError = error.downcast().expect("the closure's own error");
    /// assert_eq!(own.to_string(), "invalid digit found in string");
    /// ```
    pub fn external(error: impl Into<BoxedError>) -> Self {
        let error = match error.into().downcast::<Self>() {
            Ok(own) => return *own,
            Err(error) => error,
        };
        match error.downcast::<candle_core::Error>() {
            Ok(candle) => Self::from(*candle),
            Err(error) => classify(&*error).of(Self::External(Box::new(error))),
        }
    }

    /// The exhaustion or the device fault inside the caller's error, with `otherwise` as its source; without one, `otherwise`.
    pub(crate) fn found_in(error: &AnyError, otherwise: impl Into<BoxedError>) -> Self {
        classify(error).of(Self::External(Box::new(otherwise.into())))
    }

    /// The error of type `T` inside this one, outermost first, through candle's wrappers, `Box`, `Arc`, [`io::Error`] and `source()`.
    ///
    /// ```
    /// use candle_headroom::Error;
    ///
    /// let missing = std::fs::read("there is no such file").unwrap_err();
    /// let error = Error::external(missing);
    /// let found = error.downcast_ref::<std::io::Error>().expect("the cause");
    /// assert_eq!(found.kind(), std::io::ErrorKind::NotFound);
    /// ```
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

    /// The remedy for the CUDA driver's status that this error contains, as [`ErrorExt::remedy`] has it.
    pub fn remedy(&self) -> Option<&'static str> {
        ErrorExt::remedy(self as &AnyError)
    }

    /// Whether a lost device may be behind this error: cuBLAS and its like report only that they failed.
    pub(crate) fn may_hide_fault(&self) -> bool {
        let errors = chain(self).filter_map(|error| error.downcast_ref::<Self>());
        let reason = errors.last().unwrap_or(self);
        matches!(classify(reason), Class::Execution)
    }
}

impl Class {
    /// The error of this class that `error` is the source of, or `error` itself.
    fn of(self, error: Error) -> Error {
        match self {
            Self::Exhausted(mut exhausted) => {
                exhausted.source = Some(Arc::new(error.into()));
                Error::ResourceExhausted(exhausted)
            }
            Self::Fault(mut fault) => {
                fault.source = Some(Arc::new(error.into()));
                Error::DeviceFault(fault)
            }
            Self::Execution | Self::Setup(_) | Self::Other => error,
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match unwrap_own(error) {
            Ok(own) => own,
            Err(error) => classify(&error).of(Self::Candle(Box::new(error))),
        }
    }
}

/// This crate's error as it went into candle's, if nothing but a backtrace was added. With more context, candle's error becomes the
/// source of a new one.
fn unwrap_own(error: candle_core::Error) -> Result<Error, candle_core::Error> {
    use candle_core::Error as E;
    match error {
        E::Io(error) => error.downcast::<Error>().or_else(nn::unwrap).map_err(E::Io),
        E::WithBacktrace { inner, backtrace } => unwrap_own(*inner).map_err(|inner| {
            let inner = Box::new(inner);
            E::WithBacktrace { inner, backtrace }
        }),
        other => Err(other),
    }
}

/// Inside an [`io::Error`]: of candle's variants that can hold any error, its text is unchanged and its `source()` leads on.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => *error,
            own => Self::Io(io::Error::other(own)),
        }
    }
}

impl From<ResourceExhausted> for candle_core::Error {
    fn from(exhausted: ResourceExhausted) -> Self {
        Error::from(exhausted).into()
    }
}
