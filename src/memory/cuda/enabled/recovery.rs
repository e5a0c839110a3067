//! Makes a GPU ready for another attempt after memory ran out.

use candle_core::Device;
use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;

use super::current;
use crate::error::{Error, Result};

/// Waits for the device's work, and returns an asynchronous fault with its type, which candle's `synchronize` turns into text.
///
/// cudarc first returns errors that drops on any thread have stored; these are taken out before, so that an old error is not mistaken for
/// the answer.
pub(in crate::memory::cuda) fn synchronize(device: &Device) -> Result<()> {
    let Device::Cuda(cuda) = device else {
        return Ok(device.synchronize()?);
    };
    let stream = cuda.cuda_stream();
    drain(stream.context())?;
    match stream.synchronize() {
        Ok(()) => Ok(()),
        // Another thread may have stored an error in between: then nothing has waited yet.
        Err(error) => {
            note_stored(error)?;
            stream.synchronize().map_err(driver_error)
        }
    }
}

/// Waits, takes out stored errors, and returns the pool's unused memory to the device, which merges free pieces.
pub(in crate::memory::cuda) fn recover(device: &Device) -> Result<()> {
    synchronize(device)?;
    let Device::Cuda(cuda) = device else {
        return Ok(());
    };
    let stream = cuda.cuda_stream();
    let context = stream.context();
    if !context.has_async_alloc() {
        return Ok(());
    }
    current::trim(context).map_err(driver_error)
}

pub(super) fn driver_error(error: DriverError) -> Error {
    candle_core::Error::from(CudaError::from(error)).into()
}

pub(super) fn drain(context: &CudaContext) -> Result<()> {
    match context.check_err() {
        Ok(()) => Ok(()),
        Err(error) => note_stored(error),
    }
}

/// An error that a drop has stored says nothing about later work, unless the device is lost.
fn note_stored(error: DriverError) -> Result<()> {
    let leaked = error.0 == CUresult::CUDA_ERROR_INVALID_CONTEXT;
    match driver_error(error) {
        fault @ Error::DeviceFault(_) => return Err(fault),
        error if leaked => tracing::warn!(
            %error,
            "a tensor was dropped on a thread without the device's context, and its memory is lost: call \
             `context().bind_to_thread()` on the stream of candle's device there"
        ),
        error => tracing::warn!(%error, "an error from freeing device memory earlier"),
    }
    Ok(())
}
