//! Waits for a GPU's work, and makes the GPU ready for another attempt after memory ran out.

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, sys};
use candle_core::cuda_backend::{CudaError, WrapErr};

use super::current;
use crate::error::{Error, Result};

/// The class of an error of the driver.
pub(super) fn classified(error: DriverError) -> Error {
    candle_core::Error::from(CudaError::from(error)).into()
}

/// Waits for the device's work, and returns an asynchronous fault with its type, which candle's `synchronize` turns into text.
///
/// cudarc first returns errors that drops on any thread have stored. They are taken out before, so that an old error is not mistaken
/// for the answer.
pub(crate) fn synchronize(device: &Device) -> Result<()> {
    let Device::Cuda(cuda) = device else {
        return Ok(device.synchronize()?);
    };
    let stream = cuda.cuda_stream();
    drain(stream.context())?;
    if let Err(error) = stream.synchronize() {
        // Another thread may have stored an error in between, and then nothing has waited yet.
        note_stored(error)?;
        stream.synchronize().w()?;
    }
    Ok(())
}

/// Returns the current pool's unused memory to the device.
pub(crate) fn trim(device: &Device) -> Result<()> {
    if let Device::Cuda(cuda) = device {
        let stream = cuda.cuda_stream();
        if stream.context().has_async_alloc() {
            current::trim(stream.context()).w()?;
        }
    }
    Ok(())
}

/// Takes out an error that an earlier drop has stored.
pub(crate) fn drain(context: &CudaContext) -> Result<()> {
    context.check_err().or_else(note_stored)
}

/// An error that a drop has stored says nothing about later work, unless the device is lost.
fn note_stored(error: DriverError) -> Result<()> {
    let leaked = error.0 == sys::CUresult::CUDA_ERROR_INVALID_CONTEXT;
    match classified(error) {
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
