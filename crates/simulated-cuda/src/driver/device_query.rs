//! Initialization, versions, and properties of devices.

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use crate::card::Card;
use crate::simulator::{self, DRIVER_VERSION, device};
use crate::status::{Outcome, Status, answer, store};

/// Starts the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    answer(|| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if simulator::visible().is_empty() {
            return Err(Status(100));
        }
        simulator::initialize();
        Ok(())
    })
}

/// The driver's version, as 1000 × major + 10 × minor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    // SAFETY: the caller passes a place for one number.
    answer(|| unsafe { store(version, DRIVER_VERSION.load(Ordering::SeqCst)) })
}

/// The number of devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> u32 {
    answer(|| {
        simulator::check_initialized()?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(count, simulator::visible().len() as i32) }
    })
}

/// A device by its place among those that are visible; its `CUdevice` is its number among all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut i32, ordinal: i32) -> u32 {
    answer(|| {
        simulator::check_initialized()?;
        let place = usize::try_from(ordinal).ok();
        let number = place.and_then(|place| simulator::visible().get(place));
        let number = number.ok_or(Status::INVALID_DEVICE)?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(to, *number as i32) }
    })
}

/// Copies a text with its final zero byte, truncated to the caller's buffer.
///
/// # Safety
/// `to` points to memory for `room` bytes.
pub unsafe fn store_text(to: *mut c_char, room: usize, text: &str) -> Outcome {
    if to.is_null() || room == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    // SAFETY: `length` and the final zero fit in the caller's room.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, length);
        to.add(length).write(0);
    }
    Ok(())
}

/// A device's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, room: i32, ordinal: i32) -> u32 {
    answer(|| {
        drop(device(ordinal)?);
        // SAFETY: the caller says how much room there is.
        unsafe { store_text(to, usize::try_from(room).unwrap_or(0), &Card::get().name) }
    })
}

/// The 16 bytes that identify a device, the same in the driver API and in NVML.
pub fn uuid(ordinal: usize) -> [u8; 16] {
    let mut bytes = *b"simulated-cuda\0\0";
    bytes[15] = ordinal as u8;
    bytes
}

/// A device's identity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], ordinal: i32) -> u32 {
    // SAFETY: the caller passes a place for 16 bytes.
    answer(|| unsafe { store_uuid(to, ordinal) })
}

/// # Safety
/// `to` is null or a place for 16 bytes.
unsafe fn store_uuid(to: *mut [u8; 16], ordinal: i32) -> Outcome {
    let device = device(ordinal)?;
    // SAFETY: by contract.
    unsafe { store(to, uuid(device.ordinal)) }
}

/// A device's identity, the same as [`cuDeviceGetUuid`] returns, because devices are not divided.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], ordinal: i32) -> u32 {
    // SAFETY: the caller passes a place for 16 bytes.
    answer(|| unsafe { store_uuid(to, ordinal) })
}

/// An attribute of a device. Attributes that are not in the table are 0: not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(to: *mut i32, attribute: u32, ordinal: i32) -> u32 {
    answer(|| {
        let device = device(ordinal)?;
        let value = match attribute {
            0 => return Err(Status::INVALID_VALUE),
            33 => ordinal + 1, // PCI bus
            115 => i32::from(device.pools_supported),
            _ => Card::get().attribute(attribute),
        };
        // SAFETY: the caller passes a place for one number.
        unsafe { store(to, value) }
    })
}

/// A device's memory in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, ordinal: i32) -> u32 {
    answer(|| {
        let device = device(ordinal)?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(to, device.memory.capacity as usize) }
    })
}

/// The PCI address of a device, as NVML knows it.
pub fn pci_bus_id(ordinal: usize) -> String {
    format!("00000000:{:02X}:00.0", ordinal + 1)
}

/// A device's PCI address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, room: i32, ordinal: i32) -> u32 {
    answer(|| {
        let device = device(ordinal)?;
        let text = pci_bus_id(device.ordinal);
        // SAFETY: the caller says how much room there is. The driver writes a domain of four digits.
        unsafe { store_text(to, usize::try_from(room).unwrap_or(0), &text[4..]) }
    })
}

/// Whether one device may use another's memory directly: not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(to: *mut i32, ordinal: i32, peer: i32) -> u32 {
    answer(|| {
        drop(device(ordinal)?);
        drop(device(peer)?);
        // SAFETY: the caller passes a place for one number.
        unsafe { store(to, 0) }
    })
}
