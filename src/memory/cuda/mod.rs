//! A GPU's memory: candle on a stream-ordered pool of this crate.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
use enabled as implementation;

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
use disabled as implementation;

use std::fmt;

use candle_core::Device;

pub(super) use implementation::Events;

use super::{DeviceMemory, Limit};
use crate::error::{Error, Result};

/// Waits for the work queued on the device, and returns an asynchronous fault as [`Error::DeviceFault`].
pub(crate) fn synchronize(device: &Device) -> Result<()> {
    implementation::synchronize(device)
}

/// Makes a device ready for another attempt after memory ran out: what the trainers do between a failed attempt and the next.
///
/// Drop the failed work first. On a GPU this waits for the queued work, discards errors that earlier drops have stored in the context, and
/// returns the pool's unused memory to the device, where free pieces are merged. On the CPU it does nothing.
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
    implementation::recover(device)
}

/// The device fault behind an error, if there is one: a library that meets a lost device reports only that it failed. The driver knows.
pub(crate) fn unmask(error: Error, device: &Device) -> Error {
    if !error.may_hide_fault() {
        return error;
    }
    match synchronize(device) {
        Err(fault @ Error::DeviceFault(_)) => fault,
        _ => error,
    }
}

/// When the pool of a GPU takes memory from the driver, and when it returns it.
///
/// ```
/// use candle_headroom::memory::Growth;
///
/// assert_eq!(Growth::default(), Growth::OnDemand);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// Takes memory when it is needed and keeps it for reuse. TensorFlow calls it memory growth.
    #[default]
    OnDemand,
    /// Takes the whole limit when the memory is opened, so that no other process can: TensorFlow's default. Without a limit it takes what
    /// [`Limit::Auto`] would allow. Only [`DeviceMemory::trim`] returns it. How far the limit can be lowered depends on the driver: memory
    /// taken in one piece may stay as long as one tensor lies in it.
    Preallocate,
    /// Returns unused memory at every synchronization, as CUDA does by default. Other processes get it soon; a loop that synchronizes pays for
    /// taking it again each time.
    ReturnAtSync,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OnDemand => "on demand",
            Self::Preallocate => "preallocated",
            Self::ReturnAtSync => "returned at each synchronization",
        })
    }
}

/// Options for opening a GPU's memory; from [`DeviceMemory::cuda`].
///
/// Opening makes a new memory pool the device's current one and then creates candle's device on a stream of its own. From then on every tensor
/// that the process allocates on the device comes from the pool, also through other candle devices. Earlier allocations stay where they are
/// and count as [unaccounted](crate::memory::MemoryStats::unaccounted). Dropping the last handle makes the former pool current again; live
/// tensors keep their memory. A program that has made a pool of its own current must not destroy it meanwhile.
///
/// Growth and limit can be combined, which TensorFlow refuses.
///
/// ```no_run
/// use candle_headroom::memory::Growth;
/// use candle_headroom::{ByteSize, DeviceMemory};
///
/// let memory = DeviceMemory::cuda(0).growth(Growth::OnDemand).limit(ByteSize::gib(8)).open()?;
/// let device = memory.device(); // candle's device, to create the model on
/// println!("{}", memory.stats());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "call `open()`"]
pub struct CudaMemoryBuilder {
    ordinal: usize,
    growth: Option<Growth>,
    limit: Limit,
}

impl CudaMemoryBuilder {
    pub(super) fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            growth: None,
            limit: Limit::Unlimited,
        }
    }

    /// How the pool grows; [`Growth::OnDemand`] by default.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = Some(growth);
        self
    }

    /// Limits the process's use of the device; unlimited by default.
    ///
    /// Drivers from CUDA 12.2 on refuse allocations over the limit; opening tests on a small pool whether this one does. Otherwise trainers check
    /// the use and reduce the size. [`MemoryStats::enforcement`](crate::memory::MemoryStats::enforcement) says which of the two applies.
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Opens the device's memory, or shares it if it is open with the same settings or settings are not given here.
    ///
    /// # Errors
    /// [`MemoryError`](crate::error::MemoryError): a build without the feature `cuda`, no such device, a busy device or one without memory pools,
    /// other settings than those in force, an impossible limit, or memory that cannot be taken at once. Any other error of the driver. Nothing
    /// has changed then.
    pub fn open(self) -> Result<DeviceMemory> {
        implementation::open(self.ordinal, self.growth, self.limit)
    }
}
