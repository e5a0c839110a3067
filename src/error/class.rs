//! What an error means. [`DeviceFault`] is the gravest meaning.

use super::circumstances::{Cause, Resource};
use super::exhausted::{ResourceExhausted, Source};
use crate::environment::facts::Status;

/// An error's meaning for a program that wants to go on.
#[derive(Debug)]
pub(super) enum Class {
    Exhausted(Box<ResourceExhausted>),
    Fault(Box<DeviceFault>),
    /// A library could not run something on the device. It reports nothing more when the device is lost.
    Execution,
    /// A status that the program cannot act on, but its user can.
    Setup(Status),
    Other,
}

impl Class {
    /// An exhaustion of which nothing else is known.
    pub(super) fn exhausted(resource: Resource) -> Self {
        Self::Exhausted(Box::new(ResourceExhausted::new(resource, Cause::Unknown)))
    }
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
    pub(super) fn new(status: Status) -> Self {
        Self {
            name: status.name,
            code: status.number,
            cause: status.cause,
            remedy: status.remedy,
            source: None,
        }
    }
}
