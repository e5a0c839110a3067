//! cuBLAS handles, and the common beginning of every computation.

use std::ffi::c_char;
use std::sync::MutexGuard;

use crate::counts;
use crate::device::faults::Lack;
use crate::device::objects::Blas;
use crate::device::{BLAS_BYTES, BLAS_WORKSPACE_BYTES, Device};
use crate::driver::current;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{SUCCESS, Status, store, store_if_wanted};

pub const NOT_INITIALIZED: u32 = 1;
pub const ALLOC_FAILED: u32 = 3;
pub const INVALID_VALUE: u32 = 7;
pub const EXECUTION_FAILED: u32 = 13;
const INTERNAL_ERROR: u32 = 14;

/// The result of a cuBLAS function: the error is a `cublasStatus_t`.
pub type BlasResult<T = ()> = Result<T, u32>;

/// Runs an entry point and returns its `cublasStatus_t`.
pub fn answer(body: impl FnOnce() -> BlasResult) -> u32 {
    counts::call(&body);
    body().err().unwrap_or(SUCCESS)
}

fn with(handle: u64, body: impl FnOnce(&mut Blas)) -> u32 {
    answer(|| {
        let (mut device, serial) = of_handle(handle, Kind::Blas).map_err(|_| NOT_INITIALIZED)?;
        device
            .objects
            .blas
            .get_mut(&serial)
            .map(body)
            .ok_or(NOT_INITIALIZED)
    })
}

/// The status for a lack of device memory.
fn lack(device: &Device) -> u32 {
    match device.faults.lacks {
        Lack::Allocation => ALLOC_FAILED,
        Lack::NotInitialized => NOT_INITIALIZED,
        Lack::Internal => INTERNAL_ERROR,
        Lack::Execution => EXECUTION_FAILED,
    }
}

/// Operands of a computation: start addresses and lengths in bytes. If they are not in live memory, the context is lost.
pub type Operands<'a> = &'a [(u64, u64)];

/// Begins a computation: counts it, and returns the locked device if the work is to be done.
pub fn begin(
    handle: u64,
    name: &str,
    operands: Operands,
) -> BlasResult<Option<MutexGuard<'static, Device>>> {
    let (mut device, serial) = of_handle(handle, Kind::Blas).map_err(|_| NOT_INITIALIZED)?;
    if !device.objects.blas.contains_key(&serial) {
        return Err(NOT_INITIALIZED);
    }
    device.faults.check().map_err(|_| EXECUTION_FAILED)?;
    device.counted.library_calls += 1;
    device.trace.note(|| format!("library {name}"));
    if device.faults.library.strikes() {
        return Err(lack(&device));
    }
    if !device.objects.blas[&serial].has_workspace {
        let taken = device.memory.take_overhead(BLAS_WORKSPACE_BYTES);
        taken.map_err(|_| lack(&device))?;
        if let Some(blas) = device.objects.blas.get_mut(&serial) {
            blas.has_workspace = true;
        }
    }
    if !device.faults.launch().map_err(|_| EXECUTION_FAILED)? {
        return Ok(None);
    }
    for &(address, bytes) in operands {
        if !device.memory.covers(address, bytes) {
            eprintln!(
                "simulated CUDA: {name}: {bytes} bytes at {address:#x} are not within one live allocation"
            );
            device.faults.lost = Some(Status::ILLEGAL_ADDRESS);
            return Ok(None);
        }
    }
    Ok(Some(device))
}

/// Creates a handle for the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut u64) -> u32 {
    answer(|| {
        let mut device = current::sound_device().map_err(|_| NOT_INITIALIZED)?;
        if device.faults.library.strikes() {
            return Err(lack(&device));
        }
        let taken = device.memory.take_overhead(BLAS_BYTES);
        taken.map_err(|_| lack(&device))?;
        let serial = device.objects.serial();
        device.objects.blas.insert(
            serial,
            Blas {
                stream: 0,
                math_mode: 0,
                pointer_mode: 0,
                atomics_mode: 0,
                has_workspace: false,
            },
        );
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(handle, device.handle(Kind::Blas, serial)) }.map_err(|_| INVALID_VALUE)
    })
}

/// Destroys a handle.
#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(handle: u64) -> u32 {
    answer(|| {
        let (mut device, serial) = of_handle(handle, Kind::Blas).map_err(|_| NOT_INITIALIZED)?;
        let blas = device.objects.blas.remove(&serial).ok_or(NOT_INITIALIZED)?;
        device.memory.overhead -= match blas.has_workspace {
            true => BLAS_BYTES + BLAS_WORKSPACE_BYTES,
            false => BLAS_BYTES,
        };
        Ok(())
    })
}

/// Sets the stream of later computations, which are done at once in any case.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> u32 {
    with(handle, |blas| blas.stream = stream)
}

/// The stream of later computations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetStream_v2(handle: u64, stream: *mut u64) -> u32 {
    // SAFETY: null, or the caller passes a place for one handle.
    with(handle, |blas| unsafe {
        store_if_wanted(stream, blas.stream)
    })
}

/// Sets the handle's workspace, which is not used.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetWorkspace_v2(handle: u64, _workspace: u64, _bytes: usize) -> u32 {
    with(handle, |_| ())
}

/// Sets the math mode. Products are exact in the compute type in any mode.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetMathMode(handle: u64, mode: u32) -> u32 {
    with(handle, |blas| blas.math_mode = mode)
}

/// The math mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetMathMode(handle: u64, mode: *mut u32) -> u32 {
    // SAFETY: null, or the caller passes a place for one number.
    with(handle, |blas| unsafe {
        store_if_wanted(mode, blas.math_mode)
    })
}

/// Sets the pointer mode of scalars. Device addresses are host addresses, so both modes read them in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetPointerMode_v2(handle: u64, mode: u32) -> u32 {
    with(handle, |blas| blas.pointer_mode = mode)
}

/// The pointer mode of scalars.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetPointerMode_v2(handle: u64, mode: *mut u32) -> u32 {
    // SAFETY: null, or the caller passes a place for one number.
    with(handle, |blas| unsafe {
        store_if_wanted(mode, blas.pointer_mode)
    })
}

/// Sets whether atomics are allowed, which are not used.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetAtomicsMode(handle: u64, mode: u32) -> u32 {
    with(handle, |blas| blas.atomics_mode = mode)
}

/// The library's version: that of CUDA 13.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetVersion_v2(_handle: u64, version: *mut i32) -> u32 {
    // SAFETY: the caller passes a place for one number.
    answer(|| unsafe { store(version, 130_000) }.map_err(|_| INVALID_VALUE))
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusName(status: u32) -> *const c_char {
    let name = match status {
        SUCCESS => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        ALLOC_FAILED => c"CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        8 => c"CUBLAS_STATUS_ARCH_MISMATCH",
        11 => c"CUBLAS_STATUS_MAPPING_ERROR",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        INTERNAL_ERROR => c"CUBLAS_STATUS_INTERNAL_ERROR",
        15 => c"CUBLAS_STATUS_NOT_SUPPORTED",
        16 => c"CUBLAS_STATUS_LICENSE_ERROR",
        _ => c"CUBLAS_STATUS_UNKNOWN",
    };
    name.as_ptr()
}

/// The description of a status: its name.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: u32) -> *const c_char {
    cublasGetStatusName(status)
}
