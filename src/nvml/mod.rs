//! NVIDIA's management library, NVML, loaded at run time: for the checker, the monitor and the report of an exhaustion.
//!
//! `nvml-wrapper-sys` has the signatures. `nvml-wrapper`, the safe layer over it, is passed over: of clock event reasons it drops the
//! bits that it does not know, of memory it asks by a call that old drivers lack, and its lists allocate each time. Here a function
//! that a library lacks is a return code like any other.

mod device;
mod library;
mod memory;
#[cfg(feature = "cuda")]
mod neighbours;
mod patience;
mod processes;

use std::ffi::c_char;

pub(crate) use device::Device;
pub(crate) use library::{Library, NAMES, Nvml};
pub(crate) use memory::{Memory, Remapped};
#[cfg(feature = "cuda")]
pub(crate) use neighbours::neighbours;
pub(crate) use patience::within;
pub(crate) use processes::Processes;

/// A value, or the return code that came instead of it.
pub(crate) type Field<T> = Result<T, u32>;

pub(crate) const UNINITIALIZED: u32 = 1;
pub(crate) const NOT_SUPPORTED: u32 = 3;
pub(crate) const NO_PERMISSION: u32 = 4;
pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;
pub(crate) const GPU_IS_LOST: u32 = 15;
pub(crate) const RESET_REQUIRED: u32 = 16;

/// A text that a C library wrote, up to its end or the end of the room.
pub(crate) fn text(room: &[c_char]) -> String {
    let bytes: Vec<u8> = room
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|&byte| byte as u8)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A GPU's identity as NVML writes it, from the bytes that CUDA gives.
pub(crate) fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Whether the numbers by which the driver lists processes are those that this process knows them by. In a container they are not:
/// the driver lists the host's.
pub(crate) fn knows_processes() -> bool {
    // The number that Linux gives the first namespace; elsewhere there are none.
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) => namespace.as_os_str() == "pid:[4026531836]",
        Err(_) => true,
    }
}
