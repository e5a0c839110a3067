//! cuDNN handles, the common beginning of every computation, and what the library tells about itself.

use std::ffi::c_char;
use std::sync::MutexGuard;

use crate::counts;
use crate::device::faults::Lack;
use crate::device::objects::Dnn;
use crate::device::{DNN_BYTES, Device};
use crate::driver::current;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{SUCCESS, Status, store};

pub const NOT_INITIALIZED: u32 = 1001;
pub const BAD_PARAM: u32 = 2000;
pub const NOT_SUPPORTED: u32 = 3000;
/// What cuDNN 9 has for a lack of device memory; its name `CUDNN_STATUS_ALLOC_FAILED` means the host's (4003).
pub const DEVICE_ALLOCATION_FAILED: u32 = 4004;
const INTERNAL_ERROR: u32 = 4000;
pub const EXECUTION_FAILED: u32 = 5000;

/// The result of a cuDNN function: the error is a `cudnnStatus_t`.
pub type DnnResult<T = ()> = Result<T, u32>;

/// Runs an entry point and returns its `cudnnStatus_t`.
pub fn answer(body: impl FnOnce() -> DnnResult) -> u32 {
    counts::call(&body);
    body().err().unwrap_or(SUCCESS)
}

/// The status for a lack of device memory.
fn lack(device: &Device) -> u32 {
    match device.faults.lacks {
        Lack::Allocation => DEVICE_ALLOCATION_FAILED,
        Lack::NotInitialized => NOT_INITIALIZED,
        Lack::Internal => INTERNAL_ERROR,
        Lack::Execution => EXECUTION_FAILED,
    }
}

/// Locks the device of a handle.
fn of(handle: u64) -> DnnResult<(MutexGuard<'static, Device>, u64)> {
    if handle == 0 {
        return Err(BAD_PARAM);
    }
    let (device, serial) = of_handle(handle, Kind::Dnn).map_err(|_| NOT_INITIALIZED)?;
    match device.objects.dnn.contains_key(&serial) {
        true => Ok((device, serial)),
        false => Err(NOT_INITIALIZED),
    }
}

/// Fails without a handle.
pub fn check(handle: u64) -> DnnResult {
    of(handle).map(drop)
}

/// Begins a computation on these operands, which are start addresses and lengths in bytes: counts it, and returns the locked device if the
/// work is to be done. If an operand is not in live memory, the context is lost.
pub fn begin(
    handle: u64,
    name: &str,
    operands: &[(u64, u64)],
) -> DnnResult<Option<MutexGuard<'static, Device>>> {
    let (mut device, serial) = of(handle)?;
    device.faults.check().map_err(|_| EXECUTION_FAILED)?;
    device.counted.library_calls += 1;
    device.trace.note(|| format!("library {name}"));
    if device.faults.library.strikes() {
        return Err(lack(&device));
    }
    if !device.faults.launch().map_err(|_| EXECUTION_FAILED)? {
        return Ok(None);
    }
    let stream = current::stream_key(device.objects.dnn[&serial].stream);
    for &(address, bytes) in operands {
        if !device.memory.covers(address, bytes) {
            eprintln!(
                "simulated CUDA: {name}: {bytes} bytes at {address:#x} are not within one live allocation"
            );
            device.faults.lost = Some(Status::ILLEGAL_ADDRESS);
            return Ok(None);
        }
        if let Ok(stream) = stream {
            device.note_use(address..address + bytes, stream);
        }
    }
    Ok(Some(device))
}

/// Creates a handle for the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(handle: *mut u64) -> u32 {
    answer(|| {
        if handle.is_null() {
            return Err(BAD_PARAM);
        }
        let mut device = current::sound_device().map_err(|_| NOT_INITIALIZED)?;
        if device.faults.library.strikes() {
            return Err(lack(&device));
        }
        let taken = device.memory.take_overhead(DNN_BYTES);
        taken.map_err(|_| lack(&device))?;
        let serial = device.objects.serial();
        device.objects.dnn.insert(serial, Dnn { stream: 0 });
        // SAFETY: not null, so the caller passes a place for one handle.
        unsafe { store(handle, device.handle(Kind::Dnn, serial)) }.map_err(|_| BAD_PARAM)
    })
}

/// Destroys a handle.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(handle: u64) -> u32 {
    answer(|| {
        let (mut device, serial) = of(handle)?;
        device.objects.dnn.remove(&serial);
        device.memory.overhead -= DNN_BYTES;
        Ok(())
    })
}

/// Sets the stream of later computations, which are done at once in any case.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(handle: u64, stream: u64) -> u32 {
    answer(|| {
        let (mut device, serial) = of(handle)?;
        device.objects.dnn.insert(serial, Dnn { stream });
        Ok(())
    })
}

/// The stream of later computations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetStream(handle: u64, stream: *mut u64) -> u32 {
    answer(|| {
        let (device, serial) = of(handle)?;
        let known = device.objects.dnn[&serial].stream;
        // SAFETY: null, or the caller passes a place for one handle.
        unsafe { store(stream, known) }.map_err(|_| BAD_PARAM)
    })
}

/// The library's version: 9.21.0.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    92_100
}

/// The version of the CUDA runtime that the library was built with: 13.0.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetCudartVersion() -> usize {
    13_000
}

/// Declares entry points that check the versions of the library's parts.
macro_rules! fits {
    ($(fn $name:ident();)*) => {$(
        /// Succeeds, because the library has no parts of other versions.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            SUCCESS
        }
    )*};
}

fits! {
    fn cudnnAdvVersionCheck();
    fn cudnnCnnVersionCheck();
    fn cudnnGraphVersionCheck();
    fn cudnnOpsVersionCheck();
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetErrorString(status: u32) -> *const c_char {
    let name = match status {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        INTERNAL_ERROR => c"CUDNN_STATUS_INTERNAL_ERROR",
        DEVICE_ALLOCATION_FAILED => c"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_STATUS_UNKNOWN",
    };
    name.as_ptr()
}
