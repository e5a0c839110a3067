//! The meaning of any error for a program that wants to go on.

use std::collections::TryReserveError;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::chain::chain;
use super::circumstances::{Cause, Resource};
use super::codes::{self, Form, Meaning};
use super::error::{Error, UpdateInterrupted, WindowLost};
use super::exhausted::ResourceExhausted;
use super::fault::DeviceFault;
use super::rendering;
use crate::facts::Status;

/// An error's meaning.
#[derive(Debug)]
pub(super) enum Class {
    Exhausted(Box<ResourceExhausted>),
    Fault(Box<DeviceFault>),
    /// A library could not run something; a lost device may be the reason.
    Execution,
    /// A status that the program cannot act on, but its user can.
    Setup(&'static Status),
    Other,
}

impl Class {
    /// The remedy from the table of facts.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Fault(fault) => Some(fault.remedy),
            Self::Setup(status) => Some(status.remedy),
            Self::Exhausted(_) | Self::Execution | Self::Other => None,
        }
    }
}

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
        (Some(text), _) => classify_rendered(text, Form::Word),
        // Without the feature `cuda` this build does not know cudarc's types, but a program that enables candle's CUDA backend by
        // itself can meet them. Candle and cudarc display them as `DriverError(CUDA_ERROR_…, "…")`.
        (None, Some(foreign)) => classify_rendered(foreign, Form::Debug),
        (None, None) => Class::Other,
    }
}

fn recognize<'a>(error: &'a (dyn StdError + 'static)) -> Link<'a> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return match error {
            Error::ResourceExhausted(_)
            | Error::DeviceFault(_)
            | Error::External(_)
            | Error::Candle(_) => Link::Wrapper,
            _ => Link::Known(Class::Other),
        };
    }
    if let Some(error) = error.downcast_ref::<candle_core::Error>() {
        return recognize_candle(error);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return match error.kind() {
            io::ErrorKind::OutOfMemory => Link::Known(exhausted(Resource::HostMemory)),
            _ => Link::Wrapper,
        };
    }
    if let Some(exhausted) = error.downcast_ref::<ResourceExhausted>() {
        Link::Known(Class::Exhausted(Box::new(exhausted.clone())))
    } else if let Some(fault) = error.downcast_ref::<DeviceFault>() {
        Link::Known(Class::Fault(Box::new(fault.clone())))
    } else if error.is::<UpdateInterrupted>() || error.is::<WindowLost>() {
        // An exhaustion may be the reason, but retrying is not the answer.
        Link::Known(Class::Other)
    } else if error.is::<TryReserveError>() {
        Link::Known(exhausted(Resource::HostMemory))
    } else {
        #[cfg(feature = "cuda")]
        if let Some(status) = super::cuda::status(error) {
            return Link::Known(classify_text(&status, Form::Word));
        }
        Link::Foreign
    }
}

fn recognize_candle(error: &candle_core::Error) -> Link<'_> {
    use candle_core::Error as E;
    match error {
        E::Metal(inner) => Link::Known(classify_metal(&inner.to_string())),
        E::Cuda(inner) => Link::Text(inner),
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
        true => exhausted(Resource::DeviceMemory),
        false => Class::Other,
    }
}

/// By the error of this crate that took part in the text, or by the text itself.
fn classify_rendered(value: &(impl fmt::Display + ?Sized), form: Form) -> Class {
    let (text, noted) = rendering::render(value);
    let Some(noted) = noted else {
        return classify_text(&text, form);
    };
    match noted.downcast::<ResourceExhausted>() {
        Ok(exhausted) => Class::Exhausted(exhausted),
        Err(noted) => noted
            .downcast::<DeviceFault>()
            .map_or(Class::Other, Class::Fault),
    }
}

fn classify_text(text: &str, form: Form) -> Class {
    let Some(code) = codes::find(text, form) else {
        return Class::Other;
    };
    match code.meaning {
        Meaning::Exhausted(resource) => exhausted(resource),
        Meaning::Execution => Class::Execution,
        Meaning::Sticky(status) => Class::Fault(Box::new(DeviceFault::new(status))),
        Meaning::Setup(status) => Class::Setup(status),
    }
}

fn exhausted(resource: Resource) -> Class {
    Class::Exhausted(Box::new(ResourceExhausted::new(resource, Cause::Unknown)))
}
