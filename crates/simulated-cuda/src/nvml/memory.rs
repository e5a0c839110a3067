//! Memory of a device and of the processes on it, from the state of the driver API.

use super::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, NvmlResult, answer, device, give};

/// The ID of the simulated other process; no real process has one this high.
pub const NEIGHBOUR_PROCESS: u32 = 0x7fff_fffe;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    pub number: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// Bytes of a device's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: u64, to: *mut Memory) -> u32 {
    answer(|| {
        let memory = &device("nvmlDeviceGetMemoryInfo", handle)?.memory;
        let info = Memory {
            total: memory.capacity,
            free: memory.free_bytes(),
            used: memory.used(),
        };
        // SAFETY: the caller passes a place for them.
        unsafe { give(to, info) }
    })
}

/// Bytes of a device's memory; nothing is reserved for the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: u64, to: *mut MemoryV2) -> u32 {
    answer(|| {
        let memory = &device("nvmlDeviceGetMemoryInfo_v2", handle)?.memory;
        // SAFETY: null, or the caller's figures, whose version it has set.
        let version = unsafe { to.as_ref() }.ok_or(INVALID_ARGUMENT)?.version;
        let info = MemoryV2 {
            version,
            total: memory.capacity,
            reserved: 0,
            free: memory.free_bytes(),
            used: memory.used(),
        };
        // SAFETY: the caller passes a place for them.
        unsafe { give(to, info) }
    })
}

/// # Safety
/// `count` is null or holds the number of places at `to`.
unsafe fn processes(handle: u64, count: *mut u32, to: *mut Process) -> NvmlResult {
    let device = device("nvmlDeviceGetComputeRunningProcesses_v3", handle)?;
    let memory = &device.memory;
    let process = |number, used| Process {
        number,
        used,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };
    let own = (device.objects.retained > 0)
        .then(|| process(std::process::id(), memory.used() - memory.neighbour));
    let neighbour = (memory.neighbour > 0).then(|| process(NEIGHBOUR_PROCESS, memory.neighbour));
    let found: Vec<Process> = own.into_iter().chain(neighbour).collect();
    // SAFETY: by contract.
    let room = unsafe { count.as_ref() }.copied().ok_or(INVALID_ARGUMENT)? as usize;
    // SAFETY: not null; by contract.
    unsafe { give(count, found.len() as u32) }?;
    if room < found.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    for (index, process) in found.into_iter().enumerate() {
        // SAFETY: there is room for all of them.
        unsafe { give(to.add(index), process) }?;
    }
    Ok(())
}

/// The processes with contexts on a device: this one, and the simulated other one while it holds memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: u64,
    count: *mut u32,
    to: *mut Process,
) -> u32 {
    // SAFETY: the same contract.
    answer(|| unsafe { processes(handle, count, to) })
}

/// The processes with graphics contexts on a device: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: u64,
    count: *mut u32,
    _to: u64,
) -> u32 {
    answer(|| {
        let _device = device("nvmlDeviceGetGraphicsRunningProcesses_v3", handle)?;
        // SAFETY: the caller passes a place for one number.
        unsafe { give(count, 0) }
    })
}
