//! NVML: queries about devices and the processes on them that need no context.

pub mod control;
pub mod memory;
pub mod reading;
pub mod system;

use std::sync::MutexGuard;

use crate::device::Device;
use crate::handle::Kind;
use crate::simulator;
use crate::status::{SUCCESS, Status, store};

pub const INVALID_ARGUMENT: u32 = 2;
pub const NOT_SUPPORTED: u32 = 3;
pub const NOT_FOUND: u32 = 6;
pub const INSUFFICIENT_SIZE: u32 = 7;

/// The result of an NVML function: the error is a `nvmlReturn_t`.
pub type NvmlResult<T = ()> = Result<T, u32>;

fn answer(body: impl FnOnce() -> NvmlResult) -> u32 {
    body().err().unwrap_or(SUCCESS)
}

/// Turns a null pointer or a missing device into NVML's status for it.
fn invalid(_: Status) -> u32 {
    INVALID_ARGUMENT
}

/// The device of a call of `function`, unless a test has injected a failure.
fn device(function: &str, handle: u64) -> NvmlResult<MutexGuard<'static, Device>> {
    let find = || {
        simulator::of_handle(handle, Kind::Monitor)
            .map(|(device, _)| device)
            .map_err(invalid)
    };
    // Not with the device locked, because an injected delay must not block the driver.
    let ordinal = find()?.ordinal;
    control::obey(ordinal, function)?;
    find()
}

/// # Safety
/// `place` is null or a place for one `T`.
unsafe fn give<T>(place: *mut T, value: T) -> NvmlResult {
    // SAFETY: by contract.
    unsafe { store(place, value) }.map_err(invalid)
}
