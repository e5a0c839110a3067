//! NVML, NVIDIA's management library, loaded at run time: for the checker, the monitor and the report of an exhaustion.
//!
//! `nvml-wrapper` makes most calls. Some are raw calls through its bindings: the wrapper lacks remapped rows and the newer clock event
//! reasons, asks for memory by a call that old drivers lack, and has no room for the longer lists of processes that some drivers write.

mod device;
mod library;
#[cfg(feature = "cuda")]
mod neighbours;
mod processes;

pub(crate) use device::{Device, Remapped};
pub(crate) use library::{
    DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, Field, GPU_IS_LOST, Library, NAMES, NO_PERMISSION,
    NOT_SUPPORTED, Nvml, RESET_REQUIRED, UNINITIALIZED,
};
#[cfg(feature = "cuda")]
pub(crate) use neighbours::neighbours;
pub(crate) use processes::{Processes, knows_processes};

pub(crate) use crate::patience::within;
pub(crate) use nvml_wrapper_sys::bindings::nvmlMemory_t as Memory;

/// A GPU's UUID as NVML writes it, from the bytes that CUDA gives.
pub(crate) fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    format!("GPU-{}", groups.join("-"))
}
