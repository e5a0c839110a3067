//! NVML, NVIDIA's management library, loaded at run time: for the checker, the monitor and the report of an exhaustion.
//!
//! `nvml-wrapper` makes most calls. Some are raw calls through its bindings: the wrapper lacks remapped rows, drops clock event bits that it
//! does not know, asks for memory by a call that old drivers lack, and allocates each list of processes anew, without room for the longer
//! elements that some drivers write. A function that a library lacks is a return code like any other.

mod codes;
mod device;
mod library;
mod memory;
#[cfg(feature = "cuda")]
mod neighbours;
mod processes;
mod text;

pub(crate) use codes::{
    DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, Field, GPU_IS_LOST, INSUFFICIENT_SIZE,
    LIBRARY_NOT_FOUND, NO_DATA, NO_PERMISSION, NOT_SUPPORTED, RESET_REQUIRED, UNINITIALIZED,
};
pub(crate) use device::Device;
pub(crate) use library::{Library, NAMES, Nvml};
pub(crate) use memory::{Memory, Remapped};
#[cfg(feature = "cuda")]
pub(crate) use neighbours::neighbours;
pub(crate) use processes::{Processes, knows_processes};
pub(crate) use text::{text, uuid_text};

pub(crate) use crate::patience::within;
