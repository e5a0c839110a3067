//! What a [`candle_core::Error`] really is, through every wrapper that candle and its users put around it.

use std::collections::TryReserveError;
use std::error::Error as StdError;
use std::io;

use super::codes::{self, Meaning};
use super::{Cause, DeviceFault, Error, Resource, ResourceExhausted, cuda};
use crate::facts::Status;

/// A candle error's meaning, apart from the error itself.
#[derive(Debug)]
pub(super) enum Class {
    Exhausted(Box<ResourceExhausted>),
    Fault(Box<DeviceFault>),
    /// A library could not run something: perhaps since the device is lost.
    Execution,
    /// A status that a program cannot act on, but its user can.
    Setup(&'static Status),
    Other,
}

impl Class {
    /// What the facts advise.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Fault(fault) => Some(fault.remedy),
            Self::Setup(status) => Some(status.remedy),
            Self::Exhausted(_) | Self::Execution | Self::Other => None,
        }
    }
}

/// Looks through the wrappers by matching candle's variants: walking `source()` finds nothing, because candle's wrapping
/// variants are transparent or do not name their inner error as a source.
pub(super) fn classify(error: &candle_core::Error) -> Class {
    use candle_core::Error as E;
    match error {
        E::WithBacktrace { inner, .. } | E::WithPath { inner, .. } | E::Context { inner, .. } => {
            classify(inner)
        }
        E::WrappedContext { wrapped, .. } => classify_dynamic(wrapped.as_ref()),
        E::Cuda(inner) => match classify_chain(inner.as_ref()) {
            // The variant itself says whose error it is; see `classify_rendered` for why its text has to do.
            Chain::Unknown => classify_text(&inner.to_string()),
            Chain::Known(class) => class,
        },
        E::Metal(inner) => classify_metal(&inner.to_string()),
        E::Io(inner) => classify_io(inner),
        // Only here has candle thrown the type away, so only here does text decide.
        E::Wrapped(inner) => classify_text(&inner.to_string()),
        E::Msg(text) => classify_text(text),
        _ => Class::Other,
    }
}

/// A boxed error of any type, by type along its chain of sources.
pub(super) fn classify_dynamic(error: &(dyn StdError + 'static)) -> Class {
    match classify_chain(error) {
        Chain::Known(class) => class,
        Chain::Unknown => classify_rendered(&error.to_string()),
    }
}

/// Whether an error or one of its sources is of a type that is known here, and then what it means.
enum Chain {
    Known(Class),
    Unknown,
}

fn classify_chain(error: &(dyn StdError + 'static)) -> Chain {
    let mut next = Some(error);
    while let Some(current) = next {
        if let Some(class) = classify_known(current) {
            return Chain::Known(class);
        }
        next = current.source();
    }
    Chain::Unknown
}

/// Without the feature `cuda` this build does not link cudarc's types, but a program that turns on candle's CUDA backend by itself
/// can meet them: they write themselves as `DriverError(CUDA_ERROR_…, "…")`. Any other type's text is its own affair.
fn classify_rendered(text: &str) -> Class {
    const TYPES: [&str; 6] = [
        "DriverError",
        "CublasError",
        "CurandError",
        "NvrtcError",
        "CompileError",
        "CudnnError",
    ];
    match text.split_once('(') {
        Some((name, _)) if TYPES.contains(&name) => classify_text(text),
        _ => Class::Other,
    }
}

/// `None` for a type that says nothing here.
fn classify_known(error: &(dyn StdError + 'static)) -> Option<Class> {
    Some(if let Some(error) = error.downcast_ref::<Error>() {
        error.class()
    } else if let Some(error) = error.downcast_ref::<candle_core::Error>() {
        classify(error)
    } else if let Some(exhausted) = error.downcast_ref::<ResourceExhausted>() {
        Class::Exhausted(Box::new(exhausted.clone()))
    } else if let Some(fault) = error.downcast_ref::<DeviceFault>() {
        Class::Fault(Box::new(fault.clone()))
    } else if let Some(error) = error.downcast_ref::<io::Error>() {
        classify_io(error)
    } else if error.is::<TryReserveError>() {
        exhausted(Resource::HostMemory)
    } else if let Some(status) = cuda::status(error) {
        classify_text(&status)
    } else {
        return None;
    })
}

fn classify_io(error: &io::Error) -> Class {
    if error.kind() == io::ErrorKind::OutOfMemory {
        return exhausted(Resource::HostMemory);
    }
    match error.get_ref() {
        Some(inner) => classify_known(inner).unwrap_or(Class::Other),
        None => Class::Other,
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

fn classify_text(text: &str) -> Class {
    let Some(code) = codes::find(text) else {
        return Class::Other;
    };
    match (code.meaning, code.status) {
        (Meaning::Exhausted(resource), _) => exhausted(resource),
        (Meaning::Execution, _) => Class::Execution,
        (Meaning::Sticky, Some(status)) => Class::Fault(Box::new(DeviceFault {
            name: status.name,
            code: status.number,
            cause: status.cause,
            remedy: status.remedy,
            source: None,
        })),
        (Meaning::Setup, Some(status)) => Class::Setup(status),
        (Meaning::Sticky | Meaning::Setup, None) => Class::Other,
    }
}

fn exhausted(resource: Resource) -> Class {
    Class::Exhausted(Box::new(ResourceExhausted::new(resource, Cause::Unknown)))
}
