use std::sync::Arc;

use candle_core::Device;

use super::Limit;
use super::counters::COUNTERS;
use super::host::HostMemory;
use super::scope::{self, PeakScope};
use super::stats::{Enforcement, MemoryStats, OverLimit};
use super::system::SystemMemory;
use crate::error::{Cause, MemoryReading, Resource, ResourceExhausted, Result};

/// The memory of one device: how much there is, how much is used, how much may be used.
///
/// A handle is cheap to clone. As long as one of a device's handles lives, the settings it was opened with hold for the whole
/// process; opening it again with the same settings, or with no limit asked for, gives another handle to the same memory, and
/// with others an error, as TensorFlow has it for its memory settings. [`set_limit`](Self::set_limit) changes the limit for
/// all handles.
///
/// ```standalone_crate
/// use candle_core::{DType, Tensor};
/// use candle_headroom::{ByteSize, DeviceMemory, TrackingAllocator};
///
/// #[global_allocator]
/// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
///
/// fn main() -> Result<(), candle_headroom::Error> {
///     let memory = DeviceMemory::host().limit(ByteSize::mib(64)).open()?;
///     assert_eq!(memory.would_fit(32 << 20), Some(true));
///     assert_eq!(memory.would_fit(u64::MAX), Some(false));
///
///     let scope = memory.peak_scope();
///     Tensor::zeros((1 << 20,), DType::F32, memory.device())?; // 4 MiB, gone at once
///     assert!(scope.peak().unwrap() - scope.start().unwrap() >= 4 << 20);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    device: Device,
    host: Arc<HostMemory>,
}

/// How the host's memory is to be opened; made by [`DeviceMemory::host`].
///
/// ```
/// use candle_headroom::DeviceMemory;
///
/// let memory = DeviceMemory::host().open()?; // without a limit, whoever counts
/// assert_eq!(memory.limit(), None);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "call `open()`"]
pub struct HostMemoryBuilder {
    limit: Limit,
}

impl HostMemoryBuilder {
    /// Lets the process use this much; without it, as much as there is.
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Opens the host's memory.
    ///
    /// # Errors
    /// [`MemoryError`](crate::MemoryError): a limit without the tracking allocator, a limit below what is in use,
    /// [`Limit::Auto`] on a machine that does not report its memory, or a limit other than the one in force. Nothing is changed
    /// then.
    pub fn open(self) -> Result<DeviceMemory> {
        Ok(DeviceMemory {
            device: Device::Cpu,
            host: HostMemory::open(self.limit)?,
        })
    }
}

impl DeviceMemory {
    /// The memory that this process takes from the host, counted by [`TrackingAllocator`](super::TrackingAllocator).
    ///
    /// Where that is not installed, the handle still opens without a limit, and says `None` where it would count.
    pub fn host() -> HostMemoryBuilder {
        HostMemoryBuilder::default()
    }

    /// The device to create tensors on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The limit in bytes, if one is set.
    pub fn limit(&self) -> Option<u64> {
        self.host.limit()
    }

    /// Changes the limit for every handle of this device, up or down. Trainers follow at their next micro-batch.
    ///
    /// # Errors
    /// [`MemoryError`](crate::MemoryError), as for [`open`](HostMemoryBuilder::open); the limit then stays as it was.
    pub fn set_limit(&self, limit: impl Into<Limit>) -> Result<()> {
        self.host.set_limit(limit.into())
    }

    /// Bytes in use now; `None` where nobody counts.
    pub fn in_use(&self) -> Option<u64> {
        COUNTERS.are_fed().then(|| COUNTERS.in_use() as u64)
    }

    /// Whether `bytes` more would stay within the limit and within what the operating system has left; `None` where neither is
    /// known. A promise it is not: others allocate too.
    pub fn would_fit(&self, bytes: u64) -> Option<bool> {
        let in_limit = match (self.in_use(), self.limit()) {
            (Some(in_use), Some(limit)) => Some(in_use.saturating_add(bytes) <= limit),
            _ => None,
        };
        let in_machine = SystemMemory::read().free().map(|free| bytes <= free);
        match (in_limit, in_machine) {
            (Some(in_limit), Some(in_machine)) => Some(in_limit && in_machine),
            (known, None) | (None, known) => known,
        }
    }

    /// Everything that is known. It reads files of the operating system: ask it between steps, not between operations.
    pub fn stats(&self) -> MemoryStats {
        let system = SystemMemory::read();
        let in_use = self.in_use();
        let limit = self.limit();
        MemoryStats {
            in_use,
            peak: in_use.map(|_| scope::overall_peak() as u64),
            limit,
            enforcement: limit.map(|_| Enforcement::Soft),
            free: system.free(),
            total: system.capacity(),
            first_over_limit: COUNTERS.first_over().map(|(requested, in_use)| OverLimit {
                requested: requested as u64,
                in_use: in_use as u64,
            }),
        }
    }

    /// Starts [`MemoryStats::peak`] anew from what is in use now. Open scopes keep theirs.
    pub fn reset_peak(&self) {
        scope::reset_overall_peak();
    }

    /// What is in use and allowed now, without asking the operating system.
    pub(crate) fn reading(&self) -> MemoryReading {
        MemoryReading {
            in_use: self.in_use(),
            limit: self.limit(),
            ..MemoryReading::default()
        }
    }

    /// Measures the peak from here on, for as long as the scope lives.
    pub fn peak_scope(&self) -> PeakScope {
        PeakScope::new(COUNTERS.are_fed())
    }

    /// The exhaustion to report if use has gone over the limit since `scope` began.
    pub(crate) fn check(&self, scope: &PeakScope) -> Result<(), Box<ResourceExhausted>> {
        let (Some(limit), Some(peak)) = (self.limit(), scope.peak()) else {
            return Ok(());
        };
        if peak <= limit {
            return Ok(());
        }
        let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
        self.describe(scope, &mut exhausted);
        Err(Box::new(exhausted))
    }

    /// Fills in what is known of this memory, for an exhaustion that was met since `scope` began.
    pub(crate) fn describe(&self, scope: &PeakScope, exhausted: &mut ResourceExhausted) {
        exhausted.device = Some(self.device.location());
        let system = SystemMemory::read();
        exhausted.bytes = MemoryReading {
            peak: scope.peak(),
            free: system.free(),
            total: system.capacity(),
            ..self.reading()
        };
    }
}
