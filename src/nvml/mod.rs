//! NVML, NVIDIA's management library, loaded at run time: for the checker, the monitor and the report of an exhaustion.
//!
//! `nvml-wrapper` makes most calls. Some are raw calls through its bindings: the wrapper lacks remapped rows, drops clock event bits that it
//! does not know, asks for memory by a call that old drivers lack, and allocates each list of processes anew, without room for the longer
//! elements that some drivers write. A function that a library lacks is a return code like any other.

mod device;
mod library;
mod memory;
#[cfg(feature = "cuda")]
mod neighbours;
mod processes;
mod text;

pub(crate) use device::Device;
pub(crate) use library::{Library, NAMES, Nvml};
pub(crate) use memory::{Memory, Remapped};
#[cfg(feature = "cuda")]
pub(crate) use neighbours::neighbours;
pub(crate) use processes::{Processes, knows_processes};
pub(crate) use text::{text, uuid_text};

pub(crate) use crate::patience::within;

/// A value, or NVML's return code.
pub(crate) type Field<T> = Result<T, u32>;

pub(crate) const UNINITIALIZED: u32 = 1;
pub(crate) const NOT_SUPPORTED: u32 = 3;
pub(crate) const NO_PERMISSION: u32 = 4;
pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
pub(crate) const LIBRARY_NOT_FOUND: u32 = 12;
pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;
pub(crate) const GPU_IS_LOST: u32 = 15;
pub(crate) const RESET_REQUIRED: u32 = 16;
pub(crate) const NO_DATA: u32 = 21;
