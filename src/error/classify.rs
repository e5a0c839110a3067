//! The meaning of any error: the questions that a program asks, the ways into and out of [`candle_core::Error`], and the class of an error by
//! the types in its chain of sources, or by its text where a type is lost.

use std::collections::TryReserveError;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;

use super::circumstances::{Cause, Phase, Resource};
use super::codes::{self, Class, DeviceFault};
use super::error::{Error, INTERRUPTED, Invalid, LOST, UpdateInterrupted, WindowLost};
use super::exhausted::{ResourceExhausted, read};
use super::files::{BoxedError, CheckpointError, DataError};
use super::nn;
use super::unreached::UNREACHED;

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
    /// ```
    /// use std::num::ParseIntError;
    ///
    /// use candle_headroom::Error;
    ///
    /// let own = "12x".parse::<u32>().unwrap_err();
    /// let found = Error::external(own.clone()).downcast::<ParseIntError>();
    /// assert_eq!(found.expect("the error that was carried"), own);
    /// let other = Error::external(own).downcast::<std::io::Error>();
    /// assert!(matches!(other, Err(Error::External(_)))); // unchanged
    /// ```
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
    ///
    /// ```
    /// use candle_headroom::Error;
    ///
    /// let text = "DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"unsupported toolchain\")";
    /// let error = Error::from(candle_core::Error::msg(text));
    /// assert!(error.remedy().is_some_and(|remedy| remedy.starts_with("update the driver")));
    /// ```
    pub fn remedy(&self) -> Option<&'static str> {
        ErrorExt::remedy(self as &AnyError)
    }

    /// Whether a lost device may be behind this error: cuBLAS and its like report only that they failed.
    pub(crate) fn may_hide_fault(&self) -> bool {
        let errors = chain(self).filter_map(|error| error.downcast_ref::<Self>());
        let reason = errors.last().unwrap_or(self);
        matches!(classify(reason), Class::Execution)
    }

    /// The exhaustion behind a library's failure on a device without memory to spare; an error of another class as it is.
    pub(crate) fn on_full_device(self) -> Self {
        match classify(&self) {
            Class::Execution => {
                let found = ResourceExhausted::new(Resource::LibraryWorkspace, Cause::DeviceFull);
                Class::Exhausted(found.into()).of(self)
            }
            _ => self,
        }
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

pub(super) type AnyError = dyn StdError + 'static;

/// Ends the search of an error whose `source()` returns itself. Real errors are nested less deeply.
const DEEPEST: usize = 128;

/// Decides by the first known type in the chain, then by text where candle has dropped the type, then by what a foreign error displays.
fn classify(error: &AnyError) -> Class {
    let mut class = class_of(error);
    if let Class::Exhausted(exhausted) = &mut class
        && chain(error).any(nn::is_second_run)
    {
        exhausted.phase.get_or_insert(Phase::Recompute);
    }
    class
}

fn class_of(error: &AnyError) -> Class {
    use candle_core::Error as E;
    let mut text: Option<&dyn fmt::Display> = None;
    let mut foreign = None;
    for error in chain(error) {
        if let Some(class) = recognize(error) {
            return class;
        }
        match error.downcast_ref::<E>() {
            Some(E::Wrapped(inner)) => text = Some(inner),
            Some(E::Msg(inner)) => text = Some(inner),
            Some(_) => {}
            None if error.is::<Error>() || error.is::<io::Error>() => {}
            // Its text is that of the next one.
            None if nn::shown(error).is_some() => {}
            // The innermost one is where the chain may have been cut.
            None => foreign = Some(error),
        }
    }
    let (text, is_foreign): (&dyn fmt::Display, _) = match (text, &foreign) {
        (Some(text), _) => (text, false),
        // Such as cudarc's errors, which display themselves as `DriverError(CUDA_ERROR_…, "…")`.
        (None, Some(foreign)) => (foreign, true),
        (None, None) => return Class::Other,
    };
    let mut shown = String::new();
    // If `Display` fails, the text before it still counts.
    let _ = write!(shown, "{text}");
    if is_final(&shown) {
        return Class::Other;
    }
    match codes::find(&shown, is_foreign) {
        Some(fault @ Class::Fault(_)) => fault,
        found => {
            // Where an enum passes one of this crate's errors through, nothing but its text is left.
            let ours = read(&shown).map(|ours| Class::Exhausted(Box::new(ours)));
            ours.or(found).unwrap_or(Class::Other)
        }
    }
}

/// Whether a text is that of an error that is not retried, whatever names and causes it shows.
fn is_final(text: &str) -> bool {
    is_unreached(text) || text.contains(LOST) || text.contains(INTERRUPTED)
}

/// Whether it says for how many of how many parameters: the words alone may be anybody's.
fn is_unreached(text: &str) -> bool {
    text.split(UNREACHED).skip(1).any(|rest| {
        let words: Vec<_> = rest.split_whitespace().take(4).collect();
        let is_number = |word: &str| word.parse::<usize>().is_ok();
        matches!(words[..], [count, "of", all, what]
            if is_number(count) && is_number(all) && what.starts_with("parameters"))
    })
}

/// The class of one error of a chain, if its type is known.
fn recognize(error: &AnyError) -> Option<Class> {
    if let Some(exhausted) = error.downcast_ref::<ResourceExhausted>() {
        return Some(Class::Exhausted(Box::new(exhausted.clone())));
    }
    if nn::is_index_range(error) {
        let exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::IndexRange);
        return Some(Class::Exhausted(Box::new(exhausted)));
    }
    if let Some(fault) = error.downcast_ref::<DeviceFault>() {
        return Some(Class::Fault(Box::new(fault.clone())));
    }
    if let Some(candle_core::Error::Metal(inner)) = error.downcast_ref() {
        // candle-metal-kernels has no code for a buffer that the system refused, and writes it in two ways.
        let text = inner.to_string();
        let is_refused = text.contains("FailedToCreateResource(\"Buffer\")")
            || text.contains("metal resource: Buffer");
        return is_refused.then(|| Class::exhausted(Resource::DeviceMemory));
    }
    if error.is::<UpdateInterrupted>() || error.is::<WindowLost>() {
        // An exhaustion may be the reason, but retrying is not the answer.
        return Some(Class::Other);
    }
    let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let is_refused = io == Some(io::ErrorKind::OutOfMemory) || error.is::<TryReserveError>();
    is_refused.then(|| Class::exhausted(Resource::HostMemory))
}

/// The error and everything inside it, outermost first.
fn chain(error: &AnyError) -> impl Iterator<Item = &AnyError> {
    std::iter::successors(Some(error), |error| inner(*error)).take(DEEPEST)
}

fn inner(error: &AnyError) -> Option<&AnyError> {
    if let Some(error) = error.downcast_ref::<candle_core::Error>() {
        inner_of_candle(error)
    } else if let Some(error) = error.downcast_ref::<io::Error>() {
        // `source()` would skip the content.
        error.get_ref().map(|inner| inner as _)
    } else {
        let candle = pointee::<candle_core::Error>(error).map(|inner| inner as _);
        let own = || pointee::<Error>(error).map(|inner| inner as _);
        let candle = candle.or_else(own).or_else(|| shown(error));
        candle.or_else(|| error.source())
    }
}

/// The cause that an error of this crate shows in its text, so that it is not its source.
fn shown(error: &AnyError) -> Option<&AnyError> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error.content());
    }
    if let Some(reason) = nn::shown(error) {
        return Some(reason);
    }
    if let Some(invalid) = error.downcast_ref::<Invalid>() {
        return invalid.shown();
    }
    if let Some(lost) = error.downcast_ref::<WindowLost>() {
        return Some(&lost.reason);
    }
    if let Some(interrupted) = error.downcast_ref::<UpdateInterrupted>() {
        return interrupted.reason.as_ref().map(|reason| reason as _);
    }
    match error.downcast_ref() {
        Some(DataError::Sample { reason, .. }) => return Some(&**reason),
        Some(DataError::File { reason, .. }) => return reason.as_ref().map(|reason| reason as _),
        _ => {}
    }
    match error.downcast_ref() {
        Some(CheckpointError::File { reason, .. }) => Some(reason),
        _ => None,
    }
}

/// Candle does not return `inner` and `wrapped` from `source()`, and its transparent variants skip their content.
fn inner_of_candle(error: &candle_core::Error) -> Option<&AnyError> {
    use candle_core::Error as E;
    match error {
        E::WithBacktrace { inner, .. } | E::WithPath { inner, .. } | E::Context { inner, .. } => {
            Some(&**inner)
        }
        E::WrappedContext { wrapped, .. } | E::Cuda(wrapped) => Some(&**wrapped),
        E::Io(inner) => Some(inner),
        other => other.source(),
    }
}

/// The `T` behind a pointer: `Box<T>` and `Arc<T>` are errors too and skip their content.
fn pointee<T: StdError + 'static>(error: &AnyError) -> Option<&T> {
    let boxed = error.downcast_ref::<Box<T>>().map(|boxed| &**boxed);
    boxed.or_else(|| error.downcast_ref::<Arc<T>>().map(|shared| &**shared))
}
