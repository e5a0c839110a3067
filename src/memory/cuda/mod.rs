//! A GPU's memory: candle on a stream-ordered pool of this crate.

mod builder;
#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

use candle_core::Device;

pub use builder::CudaMemoryBuilder;
#[cfg(not(feature = "cuda"))]
use disabled as implementation;
#[cfg(feature = "cuda")]
use enabled as implementation;
#[cfg(feature = "cuda")]
pub(crate) use enabled::{PageLocked, drain, while_dropping};
use implementation::{synchronize, trim};

use crate::error::{Error, Result};

/// Makes a device ready for another attempt after memory ran out: what the trainers do between a failed attempt and the next.
///
/// Drop the failed work first. On a GPU this function waits for the queued work, discards errors that earlier drops have stored in the context,
/// and returns the pool's unused memory to the device, where free pieces are merged. On the CPU it does nothing.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{Error, ErrorExt, memory};
///
/// let device = Device::Cpu;
/// let mut rows = 1024;
/// let tensor = loop {
///     match Tensor::zeros((rows, 256), DType::F32, &device) {
///         Err(error) if error.resource_exhausted().is_some() && rows > 1 => {
///             memory::recover(&device)?;
///             rows /= 2;
///         }
///         result => break result?,
///     }
/// };
/// assert_eq!(tensor.dims(), [1024, 256]);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::DeviceFault`] if the device is lost, so that no retry can succeed; any other error of the driver.
pub fn recover(device: &Device) -> Result<()> {
    synchronize(device)?;
    trim(device)
}

/// Returns the device fault behind an error, or the error itself: NVIDIA's libraries report a lost device only as a failure.
pub(crate) fn unmask(error: Error, device: &Device) -> Error {
    match error.may_hide_fault().then(|| synchronize(device)) {
        Some(Err(fault @ Error::DeviceFault(_))) => fault,
        _ => error,
    }
}
