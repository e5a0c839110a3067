//! Versions, and finding devices.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use super::control::{REVERSED, is_lost};
use super::{
    INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NvmlResult, answer, device, give, invalid,
};
use crate::card::Card;
use crate::driver::device_query::{pci_bus_id, store_text, uuid};
use crate::handle::Kind;
use crate::simulator::{self, DRIVER_VERSION};
use crate::status::SUCCESS;

/// The version of the kernel driver that came with CUDA 13.0.
const DRIVER: &str = "580.65.06";

/// Starts NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    SUCCESS
}

/// Starts NVML; the flags have no effect.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: u32) -> u32 {
    SUCCESS
}

/// Ends NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    SUCCESS
}

/// # Safety
/// `to` is null or has room for `room` bytes.
unsafe fn give_text(to: *mut c_char, room: u32, text: &str) -> NvmlResult {
    if (room as usize) <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: by contract.
    unsafe { store_text(to, room as usize, text) }.map_err(invalid)
}

/// The version of the kernel driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: u32) -> u32 {
    // SAFETY: the caller says how much room there is.
    answer(|| unsafe { give_text(to, room, DRIVER) })
}

/// The version of NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(to: *mut c_char, room: u32) -> u32 {
    // SAFETY: the caller says how much room there is.
    answer(|| unsafe { give_text(to, room, &format!("13.{DRIVER}")) })
}

/// The version of CUDA that the driver supports, as `cuDriverGetVersion`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut i32) -> u32 {
    // SAFETY: the caller passes a place for one number.
    answer(|| unsafe { give(version, DRIVER_VERSION.load(Ordering::SeqCst)) })
}

/// The number of devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut u32) -> u32 {
    // SAFETY: the caller passes a place for one number.
    answer(|| unsafe { give(count, simulator::count() as u32) })
}

/// # Safety
/// `to` is null or a place for one handle.
unsafe fn give_device(to: *mut u64, missing: u32, is_it: impl Fn(usize) -> bool) -> NvmlResult {
    let ordinal = (0..simulator::count())
        .find(|&ordinal| is_it(ordinal) && !is_lost(ordinal))
        .ok_or(missing)?;
    let device = simulator::lock(ordinal).ok_or(missing)?;
    // SAFETY: by contract.
    unsafe { give(to, device.handle(Kind::Monitor, 0)) }
}

/// # Safety
/// `text` is null or a text with a final zero byte.
unsafe fn text_of<'a>(text: *const c_char) -> NvmlResult<&'a str> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null; by contract.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| INVALID_ARGUMENT)
}

/// A device by its index in NVML's order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, to: *mut u64) -> u32 {
    // SAFETY: the caller passes a place for one handle.
    answer(|| unsafe {
        give_device(to, INVALID_ARGUMENT, |ordinal| {
            place(ordinal) == index as usize
        })
    })
}

/// A device by its identity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(text: *const c_char, to: *mut u64) -> u32 {
    // SAFETY: the caller passes a text and a place for one handle.
    answer(|| unsafe {
        let text = text_of(text)?;
        give_device(to, NOT_FOUND, |ordinal| uuid_text(ordinal) == text)
    })
}

/// A device by its PCI address, with a domain of four or of eight digits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    text: *const c_char,
    to: *mut u64,
) -> u32 {
    // SAFETY: the caller passes a text and a place for one handle.
    answer(|| unsafe {
        let text = text_of(text)?;
        let named =
            |full: String| full.eq_ignore_ascii_case(text) || full[4..].eq_ignore_ascii_case(text);
        give_device(to, NOT_FOUND, |ordinal| named(pci_bus_id(ordinal)))
    })
}

/// A device's index in NVML's order.
fn place(ordinal: usize) -> usize {
    match REVERSED.load(Ordering::Acquire) {
        true => simulator::count() - 1 - ordinal,
        false => ordinal,
    }
}

/// A device's identity as text: `GPU-` and the bytes of `cuDeviceGetUuid`.
pub fn uuid_text(ordinal: usize) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in uuid(ordinal).iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A device's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(handle: u64, to: *mut c_char, room: u32) -> u32 {
    answer(|| {
        let _device = device("nvmlDeviceGetName", handle)?;
        // SAFETY: the caller says how much room there is.
        unsafe { give_text(to, room, &Card::get().name) }
    })
}

/// A device's identity as text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(handle: u64, to: *mut c_char, room: u32) -> u32 {
    answer(|| {
        let device = device("nvmlDeviceGetUUID", handle)?;
        // SAFETY: the caller says how much room there is.
        unsafe { give_text(to, room, &uuid_text(device.ordinal)) }
    })
}

/// A device's index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(handle: u64, index: *mut u32) -> u32 {
    answer(|| {
        let device = device("nvmlDeviceGetIndex", handle)?;
        // SAFETY: the caller passes a place for one number.
        unsafe { give(index, place(device.ordinal) as u32) }
    })
}

/// The description of a status.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(status: u32) -> *const c_char {
    let text = match status {
        SUCCESS => c"The operation was successful",
        1 => c"NVML was not first initialized with nvmlInit()",
        INVALID_ARGUMENT => c"A supplied argument is invalid",
        3 => c"The requested operation is not available on target device",
        4 => c"The current user does not have permission for operation",
        NOT_FOUND => c"A query to find an object was unsuccessful",
        INSUFFICIENT_SIZE => c"An input argument is not large enough",
        9 => c"NVIDIA driver is not loaded",
        13 => c"The requested function was not found in the NVML library",
        15 => c"The GPU has fallen off the bus or has otherwise become inaccessible",
        _ => c"An internal driver error occurred",
    };
    text.as_ptr()
}
