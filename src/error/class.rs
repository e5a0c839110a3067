//! What an error means, found also where an error displays one of this crate's errors but does not return it from `source()`,
//! such as a `#[error(transparent)]` enum around a candle error with a backtrace. [`DeviceFault`] is the gravest meaning.

use std::cell::Cell;
use std::fmt::{self, Write};

use super::circumstances::{Cause, Resource};
use super::exhausted::{ResourceExhausted, Source};
use crate::facts::Status;

/// An error's meaning for a program that wants to go on.
#[derive(Debug)]
pub(super) enum Class {
    Exhausted(Box<ResourceExhausted>),
    Fault(Box<DeviceFault>),
    /// A library could not run something on the device. It reports nothing more when the device is lost.
    Execution,
    /// A status that the program cannot act on, but its user can.
    Setup(&'static Status),
    Other,
}

impl Class {
    /// An exhaustion of which nothing else is known.
    pub(super) fn exhausted(resource: Resource) -> Self {
        Self::Exhausted(Box::new(ResourceExhausted::new(resource, Cause::Unknown)))
    }
}

thread_local! {
    /// `Some` while [`display`] runs; inside it the first class that was noted.
    static NOTED: Cell<Option<Option<Class>>> = const { Cell::new(None) };
}

/// Called by the `Display` implementations of this crate's errors. The outermost error is displayed, and noted, first.
pub(super) fn note(class: impl FnOnce() -> Class) {
    // A thread that ends has no such variable any more.
    let _ = NOTED.try_with(|noted| {
        let first = noted.take();
        noted.set(first.map(|first| first.or_else(|| Some(class()))));
    });
}

/// The text of a value, and the class of the first error of this crate that took part in it.
pub(super) fn display(value: &dyn fmt::Display) -> (String, Option<Class>) {
    let _ = NOTED.try_with(|noted| noted.set(Some(None)));
    let mut text = String::new();
    // If the value's `Display` fails, the text before it still counts.
    let _ = write!(text, "{value}");
    let noted = NOTED.try_with(Cell::take);
    (text, noted.ok().flatten().flatten())
}

/// The device's context is lost: every later call on the device fails, and only a new process can use it again.
///
/// It is never retried. Results in host memory can still be saved: save them, report, and shut the process down cleanly. Dropping device
/// handles after a sticky fault can panic inside `cudarc`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceFault {
    /// The status code's name, for example `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: &'static str,
    /// The status code's number, for example 700.
    pub code: u32,
    /// What the code means.
    pub cause: &'static str,
    /// What to do besides starting a new process.
    pub remedy: &'static str,
    pub(super) source: Option<Source>,
}

impl DeviceFault {
    pub(super) fn new(status: &'static Status) -> Self {
        Self {
            name: status.name,
            code: status.number,
            cause: status.cause,
            remedy: status.remedy,
            source: None,
        }
    }
}
