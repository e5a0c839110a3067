//! Stream-ordered memory pools. These calls need no current context.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::device::memory::DEFAULT_POOL;
use crate::handle::Kind;
use crate::simulator::{self, DRIVER_VERSION};
use crate::status::{Outcome, Status, answer, store};

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// 1: pinned to a device.
    pub allocation_type: u32,
    pub handle_types: u32,
    /// 1: a device.
    pub location_type: u32,
    pub location_id: i32,
    pub security_attributes: u64,
    /// 0: no maximum. Before driver 12.2 these bytes are reserved.
    pub max_size: u64,
    pub usage: u16,
    pub reserved: [u8; 54],
}

impl Properties {
    /// The properties of a plain pool on a device.
    pub fn of_device(ordinal: i32, max_size: u64) -> Properties {
        Properties {
            allocation_type: 1,
            handle_types: 0,
            location_type: 1,
            location_id: ordinal,
            security_attributes: 0,
            max_size,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// The first driver version that reads `max_size`.
const MAX_SIZE_SINCE: i32 = 12020;

fn pools_of(ordinal: i32) -> Outcome<MutexGuard<'static, Device>> {
    let device = simulator::device(ordinal)?;
    if device.pools_supported {
        Ok(device)
    } else {
        Err(Status::NOT_SUPPORTED)
    }
}

fn named(pool: u64) -> Outcome<(MutexGuard<'static, Device>, u64)> {
    let (mut device, serial) =
        simulator::of_handle(pool, Kind::Pool).map_err(|_| Status::INVALID_VALUE)?;
    device.memory.pool(serial)?;
    Ok((device, serial))
}

/// The pool that a device starts with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut u64, ordinal: i32) -> u32 {
    answer(|| {
        let device = pools_of(ordinal)?;
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(pool, device.handle(Kind::Pool, DEFAULT_POOL)) }
    })
}

/// The pool that serves `cuMemAllocAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut u64, ordinal: i32) -> u32 {
    answer(|| {
        let device = pools_of(ordinal)?;
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(pool, device.handle(Kind::Pool, device.memory.current_pool)) }
    })
}

/// Sets the pool that serves `cuMemAllocAsync`, which must be of the same device.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceSetMemPool(ordinal: i32, pool: u64) -> u32 {
    answer(|| {
        drop(pools_of(ordinal)?);
        let (mut device, serial) = named(pool)?;
        if device.ordinal != ordinal as usize {
            return Err(Status::INVALID_VALUE);
        }
        device.memory.current_pool = serial;
        Ok(())
    })
}

/// Creates a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(pool: *mut u64, properties: *const Properties) -> u32 {
    answer(|| {
        simulator::check_initialized()?;
        if pool.is_null() || properties.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller passes the 88 bytes of `CUmemPoolProps`.
        let wanted = unsafe { properties.read_unaligned() };
        let version = DRIVER_VERSION.load(Ordering::SeqCst);
        let plain = wanted.allocation_type == 1
            && wanted.handle_types == 0
            && wanted.location_type == 1
            && wanted.security_attributes == 0
            && wanted.usage == 0
            && wanted.reserved == [0; 54]
            && (version >= MAX_SIZE_SINCE || wanted.max_size == 0);
        if !plain {
            return Err(Status::INVALID_VALUE);
        }
        let mut device = pools_of(wanted.location_id)?;
        device.faults.check()?;
        if device.faults.pools.strikes() {
            return Err(Status::NOT_SUPPORTED);
        }
        let serial = device.memory.create_pool(wanted.max_size);
        // SAFETY: not null; the caller passes a place for one handle.
        unsafe { store(pool, device.handle(Kind::Pool, serial)) }
    })
}

/// Destroys a pool; its allocations stay valid. If it was current, the default pool becomes current.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: u64) -> u32 {
    answer(|| {
        let (mut device, serial) = named(pool)?;
        device.memory.destroy_pool(serial)
    })
}

/// Returns idle segments to the device while more than `keep` bytes are reserved. It does not synchronize.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: u64, keep: usize) -> u32 {
    answer(|| {
        let (mut device, serial) = named(pool)?;
        device.faults.check()?;
        let Device { memory, clocks, .. } = &mut *device;
        memory.trim(serial, keep as u64, clocks)
    })
}

/// Reads an attribute: an `int` for 1 to 3, a 64-bit number for 4 to 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut u64) -> u32 {
    answer(|| {
        let (mut device, serial) = named(pool)?;
        let pool = device.memory.pool(serial)?;
        let number = match attribute {
            // SAFETY: the caller passes a place for an `int`.
            1..=3 => return unsafe { store(value.cast(), pool.reuse[attribute as usize - 1]) },
            4 => pool.release_threshold,
            5 => pool.reserved.current,
            6 => pool.reserved.high,
            7 => pool.used.current,
            8 => pool.used.high,
            _ => return Err(Status::INVALID_VALUE),
        };
        // SAFETY: the caller passes a place for a 64-bit number.
        unsafe { store(value, number) }
    })
}

/// Sets a reuse flag or the release threshold, or resets a high-water mark by writing 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: u64,
    attribute: u32,
    value: *const u64,
) -> u32 {
    answer(|| {
        let (mut device, serial) = named(pool)?;
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let pool = device.memory.pool(serial)?;
        if let 1..=3 = attribute {
            // SAFETY: not null; the caller passes an `int` for these attributes.
            pool.reuse[attribute as usize - 1] = unsafe { value.cast::<u32>().read_unaligned() };
            return Ok(());
        }
        // SAFETY: not null; the caller passes a 64-bit number for the others.
        match (attribute, unsafe { value.read_unaligned() }) {
            (4, bytes) => pool.release_threshold = bytes,
            (6, 0) => pool.reserved.high = pool.reserved.current,
            (8, 0) => pool.used.high = pool.used.current,
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    })
}
