//! Classifies an error by the types in its chain of sources, and by its text where a type is lost.

use std::collections::TryReserveError;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;

use super::checkpoint::CheckpointError;
use super::circumstances::{Phase, Resource};
use super::codes::{self, Class, DeviceFault};
use super::data::DataError;
use super::error::{Error, Invalid, UpdateInterrupted, WindowLost};
use super::exhausted::ResourceExhausted;
use super::{nn, report};

pub(super) type AnyError = dyn StdError + 'static;

/// Ends the search of an error whose `source()` returns itself. Real errors are nested less deeply.
const DEEPEST: usize = 128;

/// Decides by the first known type in the chain, then by text where candle has dropped the type, then by what a foreign error displays.
pub(super) fn classify(error: &AnyError) -> Class {
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
    if report::is_final(&shown) {
        return Class::Other;
    }
    match codes::find(&shown, is_foreign) {
        Some(fault @ Class::Fault(_)) => fault,
        found => {
            // Where an enum passes one of this crate's errors through, nothing but its text is left.
            let ours = report::read(&shown).map(|ours| Class::Exhausted(Box::new(ours)));
            ours.or(found).unwrap_or(Class::Other)
        }
    }
}

/// The class of one error of a chain, if its type is known.
fn recognize(error: &AnyError) -> Option<Class> {
    if let Some(exhausted) = error.downcast_ref::<ResourceExhausted>() {
        return Some(Class::Exhausted(Box::new(exhausted.clone())));
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
pub(super) fn chain(error: &AnyError) -> impl Iterator<Item = &AnyError> {
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
        Some(DataError::Sample { reason, .. } | DataError::TooManySkipped { reason, .. }) => {
            return Some(&**reason);
        }
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
pub(super) fn pointee<T: StdError + 'static>(error: &AnyError) -> Option<&T> {
    let boxed = error.downcast_ref::<Box<T>>().map(|boxed| &**boxed);
    boxed.or_else(|| error.downcast_ref::<Arc<T>>().map(|shared| &**shared))
}
