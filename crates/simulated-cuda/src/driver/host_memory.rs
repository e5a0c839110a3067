//! Pinned host memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::current;
use crate::device::late::answer_at_once;
use crate::simulator;
use crate::status::{Outcome, Status, store};

/// Pinned memory is aligned to pages.
const ALIGNMENT: usize = 4096;

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
    let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| Status::OUT_OF_MEMORY)?;
    // SAFETY: the layout is not empty.
    let address = unsafe { alloc_zeroed(layout) } as u64;
    if address == 0 {
        return Err(Status::OUT_OF_MEMORY);
    }
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
            let layout = Layout::from_size_align(bytes as usize, ALIGNMENT)
                .map_err(|_| Status::INVALID_VALUE)?;
            // SAFETY: the map held the address, so `allocate` allocated it with this layout and it is still live.
            unsafe { dealloc(pointer as *mut u8, layout) };
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
