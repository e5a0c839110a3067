//! The status codes of NVIDIA's libraries that this crate acts on, by their enum names.
//!
//! Names and numbers are those of CUDA 13 as `cudarc` 0.19.10 binds them. NVIDIA's documentation of `CUresult` says of a sticky
//! code: "This leaves the process in an inconsistent state … the process must be terminated and relaunched".

use std::error::Error as StdError;
use std::fmt;

use super::circumstances::{Cause, Resource};
use super::exhausted::{ResourceExhausted, Source};
use crate::environment::facts::{self, Status};

/// The driver's statuses that leave the context lost. 46 (busy, or in exclusive use) is not one of them.
const STICKY: &[u32] = &[
    214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810,
];

/// What comes before a code: the types whose text begins with their name, such as `DriverError(CUDA_ERROR_…`, and the last word that a
/// [`DeviceFault`] has there.
const TYPES: [&str; 6] = [
    "fault",
    "DriverError",
    "CublasError",
    "CurandError",
    "NvrtcError",
    "CudnnError",
];

/// The class of the code whose name is in `text`; of several the gravest, since nothing may be retried after a sticky one.
///
/// Only enum names count, each as a word of its own: the words "out of memory" and a file named after a code are not an exhaustion.
/// With `only_carried`, a name counts only after one of the [`TYPES`].
pub(super) fn find(text: &str, only_carried: bool) -> Option<Class> {
    let mut before = "";
    let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '\\' | '.' | '-');
    let words = text.split(|c| !is_path(c)).filter(|word| !word.is_empty());
    let classes = words.filter_map(|word| {
        let before = std::mem::replace(&mut before, word);
        let counts = !only_carried || TYPES.iter().any(|name| before.ends_with(name));
        let name = word.trim_end_matches('.'); // a full stop
        counts.then(|| class(name)).flatten()
    });
    classes.min_by_key(|class| match class {
        Class::Fault(_) => 0,
        Class::Exhausted(_) => 1,
        Class::Execution => 2,
        Class::Setup(_) | Class::Other => 3,
    })
}

/// The class of a code, by its name.
fn class(name: &str) -> Option<Class> {
    let resource = match name {
        "CUDA_ERROR_OUT_OF_MEMORY" | "cudaErrorMemoryAllocation" => Resource::DeviceMemory,
        "CUBLAS_STATUS_ALLOC_FAILED"
        | "CURAND_STATUS_ALLOCATION_FAILED"
        | "CUDNN_STATUS_ALLOC_FAILED"
        | "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED" => Resource::LibraryWorkspace,
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED" | "NVRTC_ERROR_OUT_OF_MEMORY" => {
            Resource::HostMemory
        }
        "CUBLAS_STATUS_NOT_INITIALIZED"
        | "CUBLAS_STATUS_MAPPING_ERROR"
        | "CUBLAS_STATUS_EXECUTION_FAILED"
        | "CUBLAS_STATUS_INTERNAL_ERROR"
        | "CURAND_STATUS_NOT_INITIALIZED"
        | "CURAND_STATUS_LAUNCH_FAILURE"
        | "CURAND_STATUS_PREEXISTING_FAILURE"
        | "CURAND_STATUS_INITIALIZATION_FAILED"
        | "CURAND_STATUS_INTERNAL_ERROR"
        | "CUDNN_STATUS_NOT_INITIALIZED"
        | "CUDNN_STATUS_INTERNAL_ERROR"
        | "CUDNN_STATUS_EXECUTION_FAILED" => return Some(Class::Execution),
        _ => {
            let status = facts::cuda_statuses().find(|status| status.name == name)?;
            return Some(match STICKY.contains(&status.number) {
                true => Class::Fault(Box::new(DeviceFault::new(status))),
                false => Class::Setup(status),
            });
        }
    };
    Some(Class::exhausted(resource))
}

/// An error's meaning for a program that wants to go on.
#[derive(Debug)]
pub(super) enum Class {
    Exhausted(Box<ResourceExhausted>),
    Fault(Box<DeviceFault>),
    /// A library could not run something on the device, or begin. It reports nothing more when the device is lost, and where it could not have
    /// memory outside the pool.
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
///
/// The numbers and names are those of `CUresult` in the [CUDA driver API](https://docs.nvidia.com/cuda/cuda-driver-api).
///
/// ```
/// use candle_headroom::{Error, Result};
///
/// /// Whether a supervisor should start the program again.
/// fn needs_a_new_process<T>(result: &Result<T>) -> bool {
///     matches!(result, Err(Error::DeviceFault(_)))
/// }
///
/// let text = "DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, \"uncorrectable ECC error encountered\")";
/// let result: Result<()> = Err(candle_core::Error::msg(text).into());
/// assert!(needs_a_new_process(&result));
/// ```
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

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, code, cause, remedy) = (self.name, self.code, self.cause, self.remedy);
        write!(
            f,
            "device fault {name} ({code}): {cause}; the device is lost to this process: save what is in host memory, start a new \
             process, and {remedy}"
        )
    }
}

impl StdError for DeviceFault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
