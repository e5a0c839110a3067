//! Injected behaviour of NVML: calls that fail or take long, a lost device, and other numbers than the default ones.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::NvmlResult;

pub const GPU_IS_LOST: u32 = 15;

#[derive(Default)]
struct Orders {
    /// Device, function, status.
    failures: Vec<(usize, String, u32)>,
    /// Device, function, number.
    figures: Vec<(usize, String, u64)>,
    /// Device and milliseconds that each call takes.
    delays: Vec<(usize, u64)>,
    lost: Vec<usize>,
}

static ORDERS: Mutex<Orders> = Mutex::new(Orders {
    failures: Vec::new(),
    figures: Vec::new(),
    delays: Vec::new(),
    lost: Vec::new(),
});

/// Whether NVML lists the devices from the last to the first.
pub static REVERSED: AtomicBool = AtomicBool::new(false);

/// Calls that an injected delay does not reach: they list the devices, and tests that list them run beside one that makes calls hang.
const ANSWERS_AT_ONCE: [&str; 2] = ["nvmlDeviceGetName", "nvmlDeviceGetUUID"];

/// Whether anything was ever injected, so that benchmarks do not measure the look-up.
static ANY: AtomicBool = AtomicBool::new(false);

fn orders() -> MutexGuard<'static, Orders> {
    ORDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The injected status of a call of `function` for a device. An injected delay is waited for here.
pub fn obey(device: usize, function: &str) -> NvmlResult {
    if !ANY.load(Ordering::Acquire) {
        return Ok(());
    }
    let delay = orders()
        .delays
        .iter()
        .find(|(of, _)| *of == device && !ANSWERS_AT_ONCE.contains(&function))
        .map(|(_, delay)| *delay);
    if let Some(delay) = delay {
        thread::sleep(Duration::from_millis(delay));
    }
    let orders = orders();
    if orders.lost.contains(&device) {
        return Err(GPU_IS_LOST);
    }
    let is_it = |(of, name, _): &&(usize, String, u32)| *of == device && name == function;
    match orders.failures.iter().find(is_it) {
        Some((_, _, status)) => Err(*status),
        None => Ok(()),
    }
}

pub fn is_lost(device: usize) -> bool {
    ANY.load(Ordering::Acquire) && orders().lost.contains(&device)
}

/// The number that a test has set for a function.
pub fn figure(device: usize, function: &str) -> Option<u64> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let orders = orders();
    let is_it = |(of, name, _): &&(usize, String, u64)| *of == device && name == function;
    orders
        .figures
        .iter()
        .find(is_it)
        .map(|(_, _, figure)| *figure)
}

/// # Safety
/// `text` is null or a text with a final zero byte.
unsafe fn name(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null; by contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok().map(str::to_owned)
}

/// Makes calls of `function` for a device return `status` from now on; 0 removes this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_nvml_fail(
    device: u32,
    function: *const c_char,
    status: u32,
) -> i32 {
    // SAFETY: the caller passes a text.
    let Some(function) = (unsafe { name(function) }) else {
        return -1;
    };
    let device = device as usize;
    ANY.store(true, Ordering::Release);
    let mut orders = orders();
    orders
        .failures
        .retain(|(of, name, _)| *of != device || *name != function);
    if status != 0 {
        orders.failures.push((device, function, status));
    }
    0
}

/// Makes a function that returns one number return this one from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_nvml_set(
    device: u32,
    function: *const c_char,
    figure: u64,
) -> i32 {
    // SAFETY: the caller passes a text.
    let Some(function) = (unsafe { name(function) }) else {
        return -1;
    };
    let device = device as usize;
    ANY.store(true, Ordering::Release);
    let mut orders = orders();
    orders
        .figures
        .retain(|(of, name, _)| *of != device || *name != function);
    orders.figures.push((device, function, figure));
    0
}

/// Makes each call for a device but those for its name and UUID take this long from now on; 0 removes this.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_nvml_delay(device: u32, milliseconds: u64) -> i32 {
    let device = device as usize;
    ANY.store(true, Ordering::Release);
    let mut orders = orders();
    orders.delays.retain(|(of, _)| *of != device);
    if milliseconds > 0 {
        orders.delays.push((device, milliseconds));
    }
    0
}

/// Sets whether a device is lost: it is no longer found, and calls with a handle to it return that it is lost.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_nvml_lose(device: u32, is_lost: bool) -> i32 {
    let device = device as usize;
    ANY.store(true, Ordering::Release);
    let mut orders = orders();
    orders.lost.retain(|of| *of != device);
    if is_lost {
        orders.lost.push(device);
    }
    0
}

/// Sets whether NVML lists the devices from the last to the first. Its order is that of the PCI bus, which CUDA's need not be.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_nvml_reverse(is_reversed: bool) -> i32 {
    REVERSED.store(is_reversed, Ordering::Release);
    0
}
