//! Pinned host memory.

use std::ptr::null_mut;

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE};

use super::current;
use crate::device::late::answer_at_once;
use crate::simulator;
use crate::status::{Outcome, Status, store};

/// Allocates pinned host memory; the flags have no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(pointer: *mut u64, bytes: usize, _flags: u32) -> u32 {
    // SAFETY: the caller passes a place for one address.
    answer_at_once(|| unsafe { allocate(pointer, bytes) })
}

/// # Safety
/// `pointer` is null or a place for one address.
unsafe fn allocate(pointer: *mut u64, bytes: usize) -> Outcome {
    let mut device = current::sound_device()?;
    if bytes == 0 || pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if device.faults.host_allocation.strikes() {
        return Err(Status::OUT_OF_MEMORY);
    }
    // Whole pages, which take no memory until somebody touches them: a dry run does not.
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping, of no file, which the map of host memory owns from here on.
    let mapped = unsafe { libc::mmap(null_mut(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0) };
    if mapped == MAP_FAILED {
        return Err(Status::OUT_OF_MEMORY);
    }
    let address = mapped as u64;
    device.memory.host.insert(address, bytes as u64);
    // SAFETY: not null; by contract.
    unsafe { store(pointer, address) }
}

/// Allocates pinned host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(pointer: *mut u64, bytes: usize) -> u32 {
    // SAFETY: the caller passes a place for one address.
    answer_at_once(|| unsafe { allocate(pointer, bytes) })
}

/// Frees pinned host memory of any device, also in a lost context, whose status it then returns.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: u64) -> u32 {
    answer_at_once(|| {
        drop(current::device()?);
        for mut device in (0..simulator::count()).filter_map(simulator::lock) {
            let Some(&bytes) = device.memory.host.get(&pointer) else {
                continue;
            };
            device.note_unpinned(pointer..pointer + bytes);
            device.memory.host.remove(&pointer);
            // SAFETY: the map held the address, so `allocate` mapped it with this length and it is still mapped.
            unsafe { libc::munmap(pointer as *mut libc::c_void, bytes as usize) };
            return device.faults.check();
        }
        Err(Status::INVALID_VALUE)
    })
}

/// The device's address of pinned host memory: the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut u64,
    pointer: u64,
    _flags: u32,
) -> u32 {
    answer_at_once(|| {
        if current::sound_device()?
            .memory
            .allocation(pointer)
            .is_none()
        {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller passes a place for one address.
        unsafe { store(address, pointer) }
    })
}
