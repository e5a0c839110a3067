//! Functions with which tests control the simulator. They are `extern "C"`, and a program looks them up in the loaded libcuda.
//! Functions that can fail return 0 for success and −1 otherwise, for example for a missing device.

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::device::counters::Counters;
use crate::device::faults::{Countdown, Lack};
use crate::driver::device_query::store_text;
use crate::simulator::{self, CHECKS_PTX, DRIVER_VERSION};
use crate::status::{Outcome, Status, store};

/// The version of this interface.
pub const VERSION: u32 = 1;

fn with(device: u32, body: impl FnOnce(&mut Device) -> Outcome) -> i32 {
    let outcome = simulator::lock_as_it_is(device as usize)
        .ok_or(Status::INVALID_DEVICE)
        .and_then(|mut device| body(&mut device));
    if outcome.is_ok() { 0 } else { -1 }
}

fn require(condition: bool) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

/// The version of this interface. If the symbol exists, the simulator is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_version() -> u32 {
    VERSION
}

/// Sets the number of devices (default: 8). It must be called before any other function.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_devices(number: u32) -> i32 {
    if simulator::choose_devices(number as usize) {
        0
    } else {
        -1
    }
}

/// Sets a device's memory in bytes, which must be at least the bytes in use.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_capacity(device: u32, bytes: u64) -> i32 {
    with(device, |device| {
        let memory = &mut device.memory;
        let addresses = memory.range.addresses();
        require(bytes >= memory.used() && bytes <= (addresses.end - addresses.start) / 4)?;
        require(!memory.fragmentation || memory.reserved() == 0)?;
        memory.capacity = bytes;
        let window = memory.fragmentation.then_some(bytes);
        memory.range.set_window(window);
        Ok(())
    })
}

/// Sets the version that `cuDriverGetVersion` returns, such as 12020 for 12.2. Before 12020 pools have no `maxSize`.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_driver_version(version: i32) {
    DRIVER_VERSION.store(version, Ordering::SeqCst);
}

/// Sets whether modules fail to load with `CUDA_ERROR_UNSUPPORTED_PTX_VERSION` if their PTX is newer than the driver's version.
/// The default is false, so that a test of an older driver can use any kernels.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_checks_ptx(checks: bool) -> i32 {
    CHECKS_PTX.store(checks, Ordering::SeqCst);
    0
}

/// Sets whether a device has stream-ordered pools.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_pools_supported(device: u32, supported: bool) -> i32 {
    with(device, |device| {
        device.pools_supported = supported;
        Ok(())
    })
}

/// Sets whether a thread without a context cannot free memory on a created stream, which CUDA's documentation allows. On a default stream
/// it never can.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_frees_need_context(device: u32, need: bool) -> i32 {
    with(device, |device| {
        device.frees_need_context = need;
        Ok(())
    })
}

/// Sets whether the driver enforces the `maxSize` of pools, which it accepts in either case.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_honours_max_size(device: u32, honours: bool) -> i32 {
    with(device, |device| {
        device.memory.honours_max_size = honours;
        Ok(())
    })
}

/// Sets the size in bytes of the segments that pools reserve: a power of two, at least 512.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_segment(device: u32, bytes: u64) -> i32 {
    with(device, |device| {
        require(bytes.is_power_of_two() && bytes >= 512)?;
        device.memory.segment = bytes;
        Ok(())
    })
}

/// Sets whether a device has as many addresses as bytes, so that fragmented free memory cannot serve a large request. It fails
/// while memory is reserved.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_fragmentation(device: u32, on: bool) -> i32 {
    with(device, |device| {
        let memory = &mut device.memory;
        require(memory.reserved() == 0)?;
        memory.fragmentation = on;
        let window = on.then_some(memory.capacity);
        memory.range.set_window(window);
        Ok(())
    })
}

/// Makes another process hold this many bytes of a device. It fails without effect if they are not free.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_neighbour_set(device: u32, bytes: u64) -> i32 {
    with(device, |device| {
        require(bytes <= device.memory.free_bytes() + device.memory.neighbour)?;
        device.memory.neighbour = bytes;
        Ok(())
    })
}

/// Fails `times` device allocations with `CUDA_ERROR_OUT_OF_MEMORY`, starting with the `nth` one from now (1 is the next).
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_allocation(device: u32, nth: u64, times: u64) -> i32 {
    with(device, |device| {
        device.faults.allocation = Countdown::new(nth, times);
        Ok(())
    })
}

/// Fails allocations of pinned host memory in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_host_allocation(device: u32, nth: u64, times: u64) -> i32 {
    with(device, |device| {
        device.faults.host_allocation = Countdown::new(nth, times);
        Ok(())
    })
}

/// Fails the creation of events in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_events(device: u32, nth: u64, times: u64) -> i32 {
    with(device, |device| {
        device.faults.events = Countdown::new(nth, times);
        Ok(())
    })
}

/// Makes each event return `CUDA_ERROR_NOT_READY` to this many queries after it is recorded. Any synchronization finishes all events.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_event_lag(device: u32, queries: u32) -> i32 {
    with(device, |device| {
        device.faults.event_lag = queries;
        Ok(())
    })
}

/// Makes retaining the device's primary context fail with `code` while this process does not hold it; 0 removes the failure. 46,
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`, is the status of a device that another process uses in exclusive mode.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_late(device: u32, late: bool) -> i32 {
    with(device, |device| {
        device.finish();
        device.late.on = late;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_refuse_context(device: u32, code: u32) -> i32 {
    with(device, |device| {
        device.faults.context = (code != 0).then_some(Status(code));
        Ok(())
    })
}

/// Fails the creation of pools with `CUDA_ERROR_NOT_SUPPORTED` in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_pools(device: u32, nth: u64, times: u64) -> i32 {
    with(device, |device| {
        device.faults.pools = Countdown::new(nth, times);
        Ok(())
    })
}

/// Fails the loading of modules in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_modules(device: u32, nth: u64, times: u64) -> i32 {
    with(device, |device| {
        device.faults.modules = Countdown::new(nth, times);
        Ok(())
    })
}

/// Fails computations and new handles of cuBLAS, cuDNN and cuRAND in the same way, with the status that each has for a failed allocation (0), for
/// one that is not initialized (1), for an internal error (2) or for a failed execution (3). Where the device itself has no memory
/// left for them, they fail in this way too from now on.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_library(
    device: u32,
    nth: u64,
    times: u64,
    status: u32,
) -> i32 {
    with(device, |device| {
        device.faults.lacks = match status {
            0 => Lack::Allocation,
            1 => Lack::NotInitialized,
            2 => Lack::Internal,
            3 => Lack::Execution,
            _ => return Err(Status::INVALID_VALUE),
        };
        device.faults.library = Countdown::new(nth, times);
        Ok(())
    })
}

/// Fails `times` copies, memsets and kernel launches with `code`, starting with the `nth` one from now. The context stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fail_work(device: u32, nth: u64, times: u64, code: u32) -> i32 {
    with(device, |device| {
        require(code != 0)?;
        device.faults.work = Countdown::new(nth, times);
        device.faults.work_status = Status(code);
        Ok(())
    })
}

/// Loses a device's context at the `nth` launch (of a kernel, or by cuBLAS, cuDNN or cuRAND) from now; 0 loses it at once. The work of
/// that launch is not done, and every later call returns `code`. With `at_once`, the launch itself returns it too.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fault_at_launch(
    device: u32,
    nth: u64,
    code: u32,
    at_once: bool,
) -> i32 {
    with(device, |device| {
        require(code != 0)?;
        device.faults.order_loss(nth, Status(code), at_once);
        Ok(())
    })
}

/// Loses a device's context at the `nth` call from now that needs a context, 1 being the next, which then returns `code` as every later
/// one does.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_fault_at_call(device: u32, nth: u64, code: u32) -> i32 {
    with(device, |device| {
        require(code != 0)?;
        device.faults.order_loss_at_call(nth, Status(code));
        Ok(())
    })
}

/// Makes a lost context valid again, which no real driver does, and carries out the frees that were refused.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_clear_fault(device: u32) -> i32 {
    with(device, |device| {
        device.clear_fault();
        Ok(())
    })
}

/// Removes all injected failures of a device, and the lag of events. A lost context stays lost.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_disarm(device: u32) -> i32 {
    with(device, |device| {
        device.faults.disarm();
        Ok(())
    })
}

/// Resets a device's counts of calls and its peaks.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_reset_counters(device: u32) -> i32 {
    with(device, |device| {
        device.reset_counters();
        Ok(())
    })
}

/// Reads the counters of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_counters(device: u32, to: *mut Counters) -> i32 {
    // SAFETY: the caller passes a place for them.
    with(device, |device| unsafe { store(to, device.counters()) })
}

/// Starts or stops recording the allocations, frees, copies and launches of a device. Starting discards the old record.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_trace(device: u32, on: bool) -> i32 {
    with(device, |device| {
        device.trace.on = on;
        if on {
            device.trace.text.clear();
        }
        Ok(())
    })
}

/// Copies the record into a buffer, truncated to its size and with a final zero byte, and returns the size that the whole record
/// needs. With a null buffer it only returns the size; 0 for a device that does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_trace_text(
    device: u32,
    to: *mut c_char,
    room: usize,
) -> usize {
    let Some(device) = simulator::lock(device as usize) else {
        return 0;
    };
    // SAFETY: null, or the caller says how much room there is. Declined places are no error.
    let _ = unsafe { store_text(to, room, &device.trace.text) };
    device.trace.text.len() + 1
}
