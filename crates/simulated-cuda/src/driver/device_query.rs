//! Initialization, versions, and properties of devices.

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use crate::simulator::{self, DRIVER_VERSION, device};
use crate::status::{Outcome, Status, answer, store};

/// The name of every simulated device.
pub const DEVICE_NAME: &str = "Simulated H100 (host memory)";

/// `CU_DEVICE_ATTRIBUTE_…` numbers with the values of an H100, as far as programs plan their work with them.
const ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024),       // threads per block
    (2, 1024),       // block x
    (3, 1024),       // block y
    (4, 64),         // block z
    (5, i32::MAX),   // grid x
    (6, 65535),      // grid y
    (7, 65535),      // grid z
    (8, 48 << 10),   // shared memory per block
    (9, 64 << 10),   // constant memory
    (10, 32),        // warp
    (11, i32::MAX),  // pitch
    (12, 65536),     // registers per block
    (13, 1_980_000), // clock, kHz
    (14, 512),       // texture alignment
    (15, 1),         // overlap
    (16, 132),       // multiprocessors
    (17, 0),         // execution timeout
    (18, 0),         // integrated
    (19, 1),         // maps host memory
    (20, 0),         // compute mode
    (31, 1),         // concurrent kernels
    (32, 1),         // ECC
    (34, 0),         // PCI device
    (36, 2_619_000), // memory clock, kHz
    (37, 5120),      // memory bus, bits
    (38, 50 << 20),  // L2 cache
    (39, 2048),      // threads per multiprocessor
    (40, 3),         // copy engines
    (41, 1),         // unified addressing
    (50, 0),         // PCI domain
    (75, 9),         // compute capability, major
    (76, 0),         // compute capability, minor
    (78, 1),         // stream priorities
    (81, 228 << 10), // shared memory per multiprocessor
    (82, 65536),     // registers per multiprocessor
    (83, 0),         // managed memory: not simulated
    (87, 2),         // ratio of single to double precision
    (88, 0),         // pageable memory access
    (95, 0),         // cooperative launch: not simulated
    (97, 227 << 10), // shared memory per block, opted in
    (102, 0),        // virtual memory management: not simulated
    (106, 32),       // blocks per multiprocessor
    (111, 1024),     // reserved shared memory per block
    (119, 0),        // handle types of pools
    (120, 0),        // cluster launch: not simulated
];

/// Starts the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    answer(|| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if simulator::count() == 0 {
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
        unsafe { store(count, simulator::count() as i32) }
    })
}

/// A device by ordinal; its `CUdevice` is the ordinal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut i32, ordinal: i32) -> u32 {
    answer(|| {
        drop(device(ordinal)?);
        // SAFETY: the caller passes a place for one number.
        unsafe { store(to, ordinal) }
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
        unsafe { store_text(to, usize::try_from(room).unwrap_or(0), DEVICE_NAME) }
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
    answer(|| {
        let device = device(ordinal)?;
        // SAFETY: the caller passes a place for 16 bytes.
        unsafe { store(to, uuid(device.ordinal)) }
    })
}

/// A device's identity, the same as [`cuDeviceGetUuid`] returns, because devices are not divided.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], ordinal: i32) -> u32 {
    // SAFETY: the same contract.
    unsafe { cuDeviceGetUuid(to, ordinal) }
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
            _ => ATTRIBUTES
                .iter()
                .find(|(known, _)| *known == attribute)
                .map_or(0, |(_, value)| *value),
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
