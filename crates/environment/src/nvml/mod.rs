//! NVML, NVIDIA's management library, loaded at run time: for the checker, the monitor and the report of an exhaustion.
//!
//! `nvml-wrapper` makes most calls. Some are raw calls through its bindings: the wrapper lacks remapped rows and the newer clock event
//! reasons, asks for memory by a call that old drivers lack, and has no room for the longer lists of processes that some drivers write.

mod device;
mod library;
mod neighbours;
mod processes;

pub use device::{Device, Remapped};
pub use library::{
    DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, Field, GPU_IS_LOST, Library, NAMES, NO_PERMISSION,
    NOT_SUPPORTED, Nvml, RESET_REQUIRED, UNINITIALIZED,
};
pub use neighbours::{Neighbour, neighbours};
pub use processes::{Processes, knows_processes};

pub use crate::patience::within;
pub use nvml_wrapper_sys::bindings::nvmlMemory_t as Memory;

/// A GPU's UUID as NVML writes it, from the bytes that CUDA gives.
pub fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    format!("GPU-{}", groups.join("-"))
}
