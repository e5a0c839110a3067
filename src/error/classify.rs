//! Classifies an error by the types in its chain of sources, and by its text where a type is lost.

use std::collections::TryReserveError;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::chain::chain;
use super::circumstances::Resource;
use super::class::{Class, display};
use super::codes::{self, Form};
use super::error::{Error, UpdateInterrupted, WindowLost};
use super::exhausted::ResourceExhausted;
use super::fault::DeviceFault;

/// One error of a chain.
enum Link<'a> {
    Known(Class),
    /// A wrapper whose content follows in the chain.
    Wrapper,
    /// Candle has replaced the type by this text.
    Text(&'a dyn fmt::Display),
    Foreign,
}

/// Decides by the first known type in the chain, then by text where candle has dropped the type, then by what a foreign error displays.
pub(super) fn classify(error: &(dyn StdError + 'static)) -> Class {
    let (mut text, mut foreign) = (None, None);
    for error in chain(error) {
        match recognize(error) {
            Link::Known(class) => return class,
            Link::Wrapper => {}
            Link::Text(inner) => text = Some(inner),
            // The innermost one is where the chain may have been cut.
            Link::Foreign => foreign = Some(error),
        }
    }
    match (text, foreign) {
        (Some(text), _) => classify_text(text, Form::Word),
        // Such as cudarc's errors, which display themselves as `DriverError(CUDA_ERROR_…, "…")`.
        (None, Some(foreign)) => classify_text(foreign, Form::Debug),
        (None, None) => Class::Other,
    }
}

fn recognize<'a>(error: &'a (dyn StdError + 'static)) -> Link<'a> {
    if let Some(error) = error.downcast_ref::<candle_core::Error>() {
        recognize_candle(error)
    } else if let Some(exhausted) = error.downcast_ref::<ResourceExhausted>() {
        Link::Known(exhausted.into())
    } else if let Some(fault) = error.downcast_ref::<DeviceFault>() {
        Link::Known(fault.into())
    } else if error.is::<UpdateInterrupted>() || error.is::<WindowLost>() {
        // An exhaustion may be the reason, but retrying is not the answer.
        Link::Known(Class::Other)
    } else if let Some(error) = error.downcast_ref::<io::Error>() {
        match error.kind() {
            io::ErrorKind::OutOfMemory => Link::Known(Class::exhausted(Resource::HostMemory)),
            _ => Link::Wrapper,
        }
    } else if error.is::<TryReserveError>() {
        Link::Known(Class::exhausted(Resource::HostMemory))
    } else if error.is::<Error>() {
        Link::Wrapper
    } else {
        Link::Foreign
    }
}

fn recognize_candle(error: &candle_core::Error) -> Link<'_> {
    use candle_core::Error as E;
    match error {
        E::Metal(inner) => Link::Known(classify_metal(&inner.to_string())),
        E::Wrapped(inner) => Link::Text(inner),
        E::Msg(text) => Link::Text(text),
        _ => Link::Wrapper,
    }
}

/// candle-metal-kernels has no code for a buffer that the system refused, only this variant, whose text has two spellings.
fn classify_metal(text: &str) -> Class {
    let refused = [
        "FailedToCreateResource(\"Buffer\")",
        "metal resource: Buffer",
    ];
    match refused.iter().any(|spelling| text.contains(spelling)) {
        true => Class::exhausted(Resource::DeviceMemory),
        false => Class::Other,
    }
}

/// By the error of this crate that took part in the text, or by the text itself.
fn classify_text(value: &(impl fmt::Display + ?Sized), form: Form) -> Class {
    let (text, noted) = display(value);
    noted
        .or_else(|| codes::find(&text, form))
        .unwrap_or(Class::Other)
}
