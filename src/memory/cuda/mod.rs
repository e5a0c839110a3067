//! A GPU's memory: candle on a stream-ordered pool of this crate.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "calls the driver")]
mod enabled;

use candle_core::Device;

#[cfg(not(feature = "cuda"))]
use disabled as implementation;
#[cfg(feature = "cuda")]
use enabled as implementation;
#[cfg(feature = "cuda")]
pub(crate) use enabled::{Handle, PageLocked, drain, while_dropping};
pub(crate) use implementation::Mark;
use implementation::{is_full, open, opened, synchronize, trim};

use super::device::DeviceMemory;
use super::host;
use super::limit::{Growth, Limit};
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

/// Returns what is behind an error, or the error itself: NVIDIA's libraries report a lost device only as a failure, and often also that they
/// could not have memory, which is so exactly if the device is healthy and has less than the [`library_reserve`] free.
pub(crate) fn unmask(error: Error, device: &Device) -> Error {
    if !error.may_hide_fault() {
        return error;
    }
    // Before the wait, at which the pool may return memory.
    let is_full = is_full(device);
    match synchronize(device) {
        Err(fault @ Error::DeviceFault(_)) => fault,
        Ok(()) if is_full => error.on_full_device(),
        _ => error,
    }
}

/// Options for opening a GPU's memory; from [`DeviceMemory::cuda`].
///
/// Opening makes a new memory pool the device's current one, and then creates candle's device on a stream of its own. From then on every tensor
/// that the process allocates on the device comes from the pool, also through other candle devices. Earlier allocations stay where they are
/// and count as [unaccounted](crate::memory::MemoryStats::unaccounted). Dropping the last handle makes the former pool current again; live
/// tensors keep their memory. A program that has made a pool of its own current must not destroy it meanwhile. Growth and limit can be
/// combined, which TensorFlow refuses.
///
/// Tensors of the device are used on its one stream, in the order of the calls, from any thread: see
/// [`event_tracking`](Self::event_tracking) for what needs more.
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
    event_tracking: bool,
    /// Whether a build without `cuda` opens the host's memory.
    or_host: bool,
}

impl DeviceMemory {
    /// The memory of CUDA device `ordinal`, served from a pool of this crate; see [`CudaMemoryBuilder`].
    ///
    /// The ordinal counts in CUDA's order among the devices that `CUDA_VISIBLE_DEVICES` leaves, as `Device::new_cuda` does. Nothing
    /// happens before [`open`](CudaMemoryBuilder::open).
    ///
    /// ```no_run
    /// use candle_core::{DType, Tensor};
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::cuda(0).open()?;
    /// let x = Tensor::zeros((1024, 1024), DType::F32, memory.device())?; // 4 MiB from the pool
    /// assert!(x.device().is_cuda() && memory.in_use() >= Some(4 << 20));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn cuda(ordinal: usize) -> CudaMemoryBuilder {
        CudaMemoryBuilder {
            ordinal,
            growth: None,
            limit: Limit::Unlimited,
            event_tracking: false,
            or_host: false,
        }
    }

    /// The memory of CUDA device `ordinal` in a build with the feature `cuda`, and else [that of the host](Self::host), as
    /// [`Device::cuda_if_available`] chooses a device. On the host a growth means nothing, and a limit needs
    /// [`TrackingAllocator`](super::TrackingAllocator).
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// # #[cfg(not(feature = "cuda"))] {
    /// let memory = DeviceMemory::cuda_if_available(0).open()?;
    /// assert!(memory.device().is_cpu()); // built without `cuda`
    /// # }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn cuda_if_available(ordinal: usize) -> CudaMemoryBuilder {
        CudaMemoryBuilder {
            or_host: true,
            ..Self::cuda(ordinal)
        }
    }

    /// Returns another handle to the memory that this program has opened on `device`; `None` if it has opened none. For code that is
    /// handed a device.
    ///
    /// ```
    /// use candle_core::Device;
    /// use candle_headroom::{AdaptiveTrainer, DeviceMemory, Result, Sgd};
    ///
    /// fn trainer(optimizer: Sgd, device: &Device) -> Result<AdaptiveTrainer<Sgd>> {
    ///     let mut builder = AdaptiveTrainer::builder(optimizer);
    ///     if let Some(memory) = DeviceMemory::of(device) {
    ///         builder = builder.memory(&memory); // with the limit that the program has set
    ///     }
    ///     builder.build()
    /// }
    ///
    /// assert!(DeviceMemory::of(&Device::Cpu).is_none());
    /// let memory = DeviceMemory::host().open()?;
    /// assert!(DeviceMemory::of(memory.device()).is_some());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn of(device: &Device) -> Option<Self> {
        match device {
            Device::Cpu => host::opened(),
            device => opened(device),
        }
    }
}

impl CudaMemoryBuilder {
    /// How the pool grows; [`Growth::OnDemand`] by default. A second opening with another growth than the first is an error.
    ///
    /// ```no_run
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::memory::Growth;
    ///
    /// let memory = DeviceMemory::cuda(0).growth(Growth::ReturnAtSync).open()?;
    /// assert!(DeviceMemory::cuda(0).growth(Growth::OnDemand).open().unwrap_err().is_memory());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = Some(growth);
        self
    }

    /// Limits the process's use of the device; unlimited by default.
    ///
    /// Drivers from CUDA 12.2 on can refuse allocations over the limit; opening tests on a small pool whether this one does. Otherwise
    /// trainers check the use and reduce the size: see [`MemoryStats::enforcement`](crate::memory::MemoryStats::enforcement).
    ///
    /// ```no_run
    /// use candle_headroom::memory::{Enforcement, Limit};
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::cuda(0).limit(Limit::Fraction(0.5)).open()?;
    /// match memory.stats().enforcement {
    ///     Some(Enforcement::Hard) => println!("the driver refuses more"),
    ///     enforcement => assert_eq!(enforcement, Some(Enforcement::Soft)),
    /// }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Whether cudarc records each use of a tensor in events, for which other streams wait; false by default.
    ///
    /// On one stream nothing has to wait, and events are three quarters of what a step of small layers asks of the driver. Two kinds of
    /// programs need them, because their tensors are used on a second stream: those that make streams of cudarc by themselves, and those
    /// that copy a tensor to another candle device on a GPU (`to_device`) without `synchronize` before it. Loaders, checkpoints and
    /// ranks of this crate do not.
    ///
    /// Without events a tensor that is dropped on a thread which has never used the device is freed without a context. CUDA's
    /// documentation allows it, and opening tries it: where a driver refuses, events stay on.
    ///
    /// ```no_run
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::cuda(0).event_tracking(true).open()?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn event_tracking(mut self, event_tracking: bool) -> Self {
        self.event_tracking = event_tracking;
        self
    }

    /// Opens the device's memory, or shares it if it is open and no other settings are given.
    ///
    /// ```no_run
    /// use candle_headroom::DeviceMemory;
    ///
    /// match DeviceMemory::cuda(0).open() {
    ///     Ok(memory) => assert!(memory.device().is_cuda()),
    ///     Err(error) => eprintln!("no GPU for this run: {error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// A build without the feature `cuda`, no such device, a busy device or one without memory pools, other settings than those in force,
    /// an impossible limit, or memory that cannot be taken at once ([`is_memory`](Error::is_memory)). Any other error of the driver.
    /// Nothing has changed then.
    pub fn open(self) -> Result<DeviceMemory> {
        match self.or_host && !cfg!(feature = "cuda") {
            true => DeviceMemory::host().limit(self.limit).open(),
            false => open(self.ordinal, self.growth, self.limit, self.event_tracking),
        }
    }
}
