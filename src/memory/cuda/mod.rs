//! A GPU's memory: candle on a stream-ordered pool of this crate's own.

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

/// How the pool of a GPU's memory takes memory from the driver, and when it gives it back.
///
/// ```
/// use candle_headroom::memory::Growth;
///
/// assert_eq!(Growth::default(), Growth::OnDemand);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// Takes what is needed when it is needed, and keeps it for reuse. TensorFlow calls it memory growth.
    #[default]
    OnDemand,
    /// Takes all of the limit when the memory is opened, so that nobody else can: TensorFlow's own default. Without a limit it is
    /// what [`Limit::Auto`] would be. Only [`DeviceMemory::trim`] gives it back. A limit can be lowered only to what the pool can give
    /// up: what was taken in one piece may stay as long as one tensor lies in it.
    Preallocate,
    /// Gives what is not in use back at every synchronization: what CUDA itself does by default. Other processes get the memory
    /// soon, and a loop that synchronizes pays for taking it anew each time.
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

/// How a GPU's memory is to be opened; made by [`DeviceMemory::cuda`].
///
/// Opening makes a memory pool of this crate's own the current one of the device, and creates candle's device after that, on a
/// stream of its own: every tensor that the process allocates there from then on is served from the pool, also through devices
/// that it makes itself. What was allocated before stays where it is and is counted as
/// [unaccounted](crate::memory::MemoryStats::unaccounted). When the last handle is dropped, the pool that was current before is current
/// again; tensors that still live keep their memory. A program that has made a pool of its own current must not destroy it
/// meanwhile.
///
/// Growth and limit can be had together, which TensorFlow refuses.
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

    /// How the pool grows; [`Growth::OnDemand`] without it.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = Some(growth);
        self
    }

    /// Lets the process use this much of the device; without it, as much as there is.
    ///
    /// Drivers from CUDA 12.2 on refuse what goes over it: whether this one does is tried on a small pool when the memory is
    /// opened. Where it does not, trainers look at the use and cut their work smaller.
    /// [`MemoryStats::enforcement`](crate::memory::MemoryStats::enforcement) says which of the two it is.
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Opens the device's memory, or shares it where it is open with the same settings, or with ones that are not asked for here.
    ///
    /// # Errors
    /// [`MemoryError`](crate::error::MemoryError): a build without the feature `cuda`, no such device, a device without memory pools, other
    /// settings than those in force, a limit that cannot be had, memory that cannot be taken at once. Any error of the driver's
    /// as candle would return it. Nothing is changed then.
    pub fn open(self) -> Result<DeviceMemory> {
        implementation::open(self.ordinal, self.growth, self.limit)
    }
}
