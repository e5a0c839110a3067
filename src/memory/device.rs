use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use candle_core::Device;
use parking_lot::Mutex;

use super::Limit;
use super::counters::COUNTERS;
use super::scope::{self, PeakScope};
use super::stats::{Enforcement, MemoryStats, OverLimit};
use super::system::SystemMemory;
use crate::error::{Cause, Error, MemoryError, Resource, ResourceExhausted};

/// The memory of one device: how much there is, how much is used, how much may be used.
///
/// A handle is cheap to clone. As long as one of a device's handles lives, the settings it was opened with hold for the whole
/// process; opening it again with the same settings, or with no limit asked for, gives another handle to the same memory, and
/// with others an error, as TensorFlow has it for its memory settings. [`set_limit`](Self::set_limit) changes the limit for
/// all handles.
///
/// ```standalone_crate
/// use bytesize::ByteSize;
/// use candle_core::{DType, Tensor};
/// use candle_headroom::{DeviceMemory, TrackingAllocator};
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
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    asked: Mutex<Limit>,
    /// `u64::MAX` without a limit.
    limit: AtomicU64,
}

/// The host's memory while a handle to it lives.
static HOST: Mutex<Weak<Inner>> = Mutex::new(Weak::new());

/// How the host's memory is to be opened; made by [`DeviceMemory::host`].
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
    /// [`MemoryError`]: a limit without the tracking allocator, a limit below what is in use, [`Limit::Auto`] on a machine that
    /// does not report its memory, or a limit other than the one in force. Nothing is changed then.
    pub fn open(self) -> Result<DeviceMemory, Error> {
        refuse_uncounted(self.limit)?;
        let mut host = HOST.lock();
        if let Some(inner) = host.upgrade() {
            // A handle that turns out to be the last one takes the lock when it drops.
            drop(host);
            return DeviceMemory { inner }.joined_with(self.limit);
        }
        let limit = admit(self.limit)?;
        let inner = Arc::new(Inner {
            device: Device::Cpu,
            asked: Mutex::new(self.limit),
            limit: AtomicU64::new(u64::MAX),
        });
        inner.set(limit);
        *host = Arc::downgrade(&inner);
        Ok(DeviceMemory { inner })
    }
}

fn refuse_uncounted(limit: Limit) -> Result<(), MemoryError> {
    match limit != Limit::Unlimited && !COUNTERS.are_fed() {
        true => Err(MemoryError::AllocatorNotInstalled),
        false => Ok(()),
    }
}

/// The limit in bytes, if it can be kept from here on.
fn admit(limit: Limit) -> Result<Option<u64>, MemoryError> {
    refuse_uncounted(limit)?;
    let limit = limit.resolve()?;
    let in_use = COUNTERS.in_use() as u64;
    match limit {
        Some(limit) if limit < in_use => Err(MemoryError::BelowUse { limit, in_use }),
        limit => Ok(limit),
    }
}

impl Inner {
    fn set(&self, limit: Option<u64>) {
        let bytes = limit.unwrap_or(u64::MAX);
        self.limit.store(bytes, Relaxed);
        COUNTERS.watch(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|&limit| limit != u64::MAX)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Somebody may have opened the host anew since the last handle let go: then the counters are theirs.
        let host = HOST.lock();
        if host.strong_count() == 0 {
            COUNTERS.watch(usize::MAX);
        }
    }
}

impl DeviceMemory {
    /// The memory that this process takes from the host, counted by [`TrackingAllocator`](super::TrackingAllocator).
    ///
    /// Where that is not installed, the handle still opens without a limit, and says `None` where it would count.
    pub fn host() -> HostMemoryBuilder {
        HostMemoryBuilder::default()
    }

    fn joined_with(self, asked: Limit) -> Result<Self, Error> {
        if asked == Limit::Unlimited || asked == *self.inner.asked.lock() {
            return Ok(self);
        }
        Err(Error::from(MemoryError::AlreadyOpen {
            open: self.limit(),
            asked: asked.resolve()?,
        }))
    }

    /// The device to create tensors on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The limit in bytes, if one is set.
    pub fn limit(&self) -> Option<u64> {
        self.inner.limit()
    }

    /// Changes the limit for every handle of this device, up or down. Trainers follow at their next micro-batch.
    ///
    /// # Errors
    /// [`MemoryError`], as for [`open`](HostMemoryBuilder::open); the limit then stays as it was.
    pub fn set_limit(&self, limit: impl Into<Limit>) -> Result<(), Error> {
        let limit = limit.into();
        let bytes = admit(limit)?;
        let mut asked = self.inner.asked.lock();
        *asked = limit;
        self.inner.set(bytes);
        Ok(())
    }

    /// Bytes in use now; `None` where nobody counts.
    pub fn in_use(&self) -> Option<u64> {
        COUNTERS.are_fed().then(|| COUNTERS.in_use() as u64)
    }

    /// Whether `bytes` more would stay within the limit, or, without a limit, within what the operating system calls
    /// available; `None` where that is not known. A promise it is not: others allocate too.
    pub fn would_fit(&self, bytes: u64) -> Option<bool> {
        match (self.in_use(), self.limit()) {
            (Some(in_use), Some(limit)) => Some(in_use.saturating_add(bytes) <= limit),
            _ => Some(bytes <= SystemMemory::read().usable()?),
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
            free: system.usable(),
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
        exhausted.device = Some(self.inner.device.location());
        exhausted.bytes.in_use = self.in_use();
        exhausted.bytes.peak = scope.peak();
        exhausted.bytes.limit = self.limit();
        let system = SystemMemory::read();
        exhausted.bytes.free = system.usable();
        exhausted.bytes.total = system.capacity();
    }
}
