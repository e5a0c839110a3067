//! The status codes of NVIDIA's libraries that this crate acts on, by their enum names.
//!
//! Names and numbers are those of CUDA 13 as `cudarc` 0.19.10 binds them. NVIDIA's documentation of `CUresult` says of a sticky
//! code: "This leaves the process in an inconsistent state … the process must be terminated and relaunched".

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
        "CUBLAS_STATUS_MAPPING_ERROR"
        | "CUBLAS_STATUS_EXECUTION_FAILED"
        | "CUBLAS_STATUS_INTERNAL_ERROR"
        | "CURAND_STATUS_LAUNCH_FAILURE"
        | "CURAND_STATUS_PREEXISTING_FAILURE"
        | "CURAND_STATUS_INTERNAL_ERROR"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_found_and_a_sticky_one_first() {
        let mut sticky = 0;
        for status in facts::cuda_statuses() {
            let text = format!("CUDA_ERROR_OUT_OF_MEMORY, then {}.", status.name);
            match (find(status.name, false), find(&text, false)) {
                (Some(Class::Exhausted(_)), _) => assert_eq!(status.number, 2),
                (Some(Class::Setup(found)), Some(Class::Exhausted(_))) => assert_eq!(found, status),
                (Some(Class::Fault(fault)), Some(Class::Fault(_))) => {
                    assert_eq!((fault.name, fault.code), (status.name, status.number));
                    sticky += 1;
                }
                other => panic!("{}: {other:?}", status.name),
            }
        }
        assert_eq!(sticky, STICKY.len());
        #[rustfmt::skip]
        let execution = [
            "CUBLAS_STATUS_MAPPING_ERROR", "CUBLAS_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_INTERNAL_ERROR",
            "CURAND_STATUS_LAUNCH_FAILURE", "CURAND_STATUS_PREEXISTING_FAILURE", "CURAND_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_INTERNAL_ERROR", "CUDNN_STATUS_EXECUTION_FAILED",
        ];
        for name in execution {
            let found = find(name, false);
            assert!(matches!(found, Some(Class::Execution)), "{name}: {found:?}");
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn every_status_is_spelled_and_numbered_as_in_the_bindings() {
        use candle_core::cuda_backend::cudarc::driver::sys::CUresult::*;
        #[rustfmt::skip]
        let driver = [
            CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_STUB_LIBRARY,
            CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_NO_DEVICE,
            CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_DEVICE_NOT_LICENSED, CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_INVALID_PTX,
            CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_JIT_COMPILATION_DISABLED, CUDA_ERROR_CONTAINED, CUDA_ERROR_INVALID_SOURCE,
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
            CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_NOT_PERMITTED,
            CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_RPC_FAILURE,
            CUDA_ERROR_MPS_SERVER_NOT_READY, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
            CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_UNKNOWN,
        ];
        // 919 is newer than CUDA 13.0, so not in the bindings of a build with its toolkit.
        let listed = facts::cuda_statuses().filter(|status| status.number != 919);
        let listed: Vec<_> = listed
            .map(|status| (status.name.to_owned(), status.number))
            .collect();
        assert_eq!(
            driver.map(|code| (format!("{code:?}"), code as u32))[..],
            listed
        );
    }
}
