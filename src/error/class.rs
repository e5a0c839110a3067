//! What an error means, found also where an error displays one of this crate's errors but does not return it from `source()`,
//! such as a `#[error(transparent)]` enum around a candle error with a backtrace.

use std::cell::Cell;
use std::fmt::{self, Write};

use super::circumstances::{Cause, Resource};
use super::exhausted::ResourceExhausted;
use super::fault::DeviceFault;
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

impl From<&ResourceExhausted> for Class {
    fn from(exhausted: &ResourceExhausted) -> Self {
        Self::Exhausted(Box::new(exhausted.clone()))
    }
}

impl From<&DeviceFault> for Class {
    fn from(fault: &DeviceFault) -> Self {
        Self::Fault(Box::new(fault.clone()))
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
pub(super) fn display(value: &(impl fmt::Display + ?Sized)) -> (String, Option<Class>) {
    let _ = NOTED.try_with(|noted| noted.set(Some(None)));
    let mut text = String::new();
    // If the value's `Display` fails, the text before it still counts.
    let _ = write!(text, "{value}");
    let noted = NOTED.try_with(Cell::take);
    (text, noted.ok().flatten().flatten())
}
