//! The limit on this process's memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use candle_core::{Device, DeviceLocation};
use parking_lot::Mutex;

use super::backing::Backing;
use super::counters::COUNTERS;
use super::device::DeviceMemory;
use super::limit::{AUTO_FRACTION, Limit, Room};
use super::peaks::Scopes;
use super::stats::{Enforcement, MemoryStats, OverLimit};
use super::system::SystemMemory;
use super::turn::Turns;
use crate::error::{MemoryError, MemoryReading, Resource, ResourceExhausted, Result};

/// The open host memory, while a handle lives.
static OPEN: Mutex<Weak<HostMemory>> = Mutex::new(Weak::new());

/// Process-wide, as the counters are: peaks outlive the handles.
static SCOPES: Mutex<Scopes> = Mutex::new(Scopes::new());

static TURNS: Turns = Turns::new();

/// Options for opening the host's memory; from [`DeviceMemory::host`].
///
/// ```
/// use candle_headroom::DeviceMemory;
///
/// let memory = DeviceMemory::host().open()?; // without a limit
/// assert_eq!(memory.limit(), None);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "call `open()`"]
pub struct HostMemoryBuilder {
    limit: Limit,
}

impl DeviceMemory {
    /// This process's memory on the host, counted by [`TrackingAllocator`](super::TrackingAllocator).
    ///
    /// Without that allocator the handle opens only without a limit, and its counts are `None`.
    pub fn host() -> HostMemoryBuilder {
        HostMemoryBuilder::default()
    }
}

impl HostMemoryBuilder {
    /// Limits the process's use; unlimited by default.
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Opens the host's memory.
    ///
    /// # Errors
    /// [`MemoryError`]: a limit without the tracking allocator, below the present use, or other than the one in force; a fraction outside (0, 1];
    /// [`Limit::Auto`] on a machine that does not report its memory. Nothing has changed then.
    pub fn open(self) -> Result<DeviceMemory> {
        let host = HostMemory::open(self.limit)?;
        Ok(DeviceMemory::new(Device::Cpu, host))
    }
}

#[derive(Debug)]
struct HostMemory {
    asked: Mutex<Limit>,
    /// `u64::MAX` without a limit.
    bytes: AtomicU64,
}

impl HostMemory {
    /// The open memory if its limit is the one asked for, or a new one.
    fn open(asked: Limit) -> Result<Arc<Self>> {
        refuse_uncounted(asked)?;
        let mut open = OPEN.lock();
        if let Some(host) = open.upgrade() {
            // If `host` is the last handle, its drop takes the lock.
            drop(open);
            host.agree(asked)?;
            return Ok(host);
        }
        let bytes = admit(asked)?;
        let host = Arc::new(Self {
            asked: Mutex::new(asked),
            bytes: AtomicU64::new(u64::MAX),
        });
        host.watch(bytes);
        *open = Arc::downgrade(&host);
        Ok(host)
    }

    fn agree(&self, asked: Limit) -> Result<()> {
        if asked == Limit::Unlimited || asked == *self.asked.lock() {
            return Ok(());
        }
        let (device, open) = (DeviceLocation::Cpu, self.limit());
        let asked = asked.resolve(room())?;
        Err(MemoryError::AlreadyOpen {
            device,
            open,
            asked,
        }
        .into())
    }

    fn watch(&self, limit: Option<u64>) {
        let bytes = limit.unwrap_or(u64::MAX);
        self.bytes.store(bytes, Relaxed);
        COUNTERS.watch(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

impl Backing for HostMemory {
    fn resource(&self) -> Resource {
        Resource::HostMemory
    }

    fn limit(&self) -> Option<u64> {
        Some(self.bytes.load(Relaxed)).filter(|&bytes| bytes != u64::MAX)
    }

    fn set_limit(&self, limit: Limit) -> Result<()> {
        let bytes = admit(limit)?;
        let mut asked = self.asked.lock();
        *asked = limit;
        self.watch(bytes);
        Ok(())
    }

    fn in_use(&self) -> Option<u64> {
        COUNTERS.are_fed().then(|| COUNTERS.in_use() as u64)
    }

    fn free(&self) -> Option<u64> {
        SystemMemory::read().free()
    }

    fn reading(&self) -> MemoryReading {
        MemoryReading {
            in_use: self.in_use(),
            limit: self.limit(),
            ..MemoryReading::default()
        }
    }

    fn stats(&self) -> MemoryStats {
        let system = SystemMemory::read();
        let in_use = self.in_use();
        let limit = self.limit();
        MemoryStats {
            in_use,
            peak: in_use.map(|_| SCOPES.lock().overall(self.take_peak())),
            limit,
            enforcement: limit.map(|_| Enforcement::Soft),
            free: system.free(),
            total: system.capacity(),
            first_over_limit: COUNTERS.first_over().map(|(requested, in_use)| OverLimit {
                requested: requested as u64,
                in_use: in_use as u64,
            }),
            ..MemoryStats::default()
        }
    }

    fn take_peak(&self) -> Option<u64> {
        Some(COUNTERS.take_peak() as u64)
    }

    fn scopes(&self) -> &Mutex<Scopes> {
        &SCOPES
    }

    fn turns(&self) -> &Turns {
        &TURNS
    }

    /// The allocator gives back what it can by itself.
    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn describe(&self, exhausted: &mut ResourceExhausted, _: Option<u64>) {
        let system = SystemMemory::read();
        exhausted.bytes = MemoryReading {
            peak: exhausted.bytes.peak,
            free: system.free(),
            total: system.capacity(),
            ..self.reading()
        };
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // Another thread may have opened the host again meanwhile: then the counters are its own.
        let open = OPEN.lock();
        if open.strong_count() == 0 {
            COUNTERS.watch(usize::MAX);
        }
    }
}

fn room() -> Room {
    let system = SystemMemory::read();
    Room {
        total: system.capacity(),
        usable: system.usable(COUNTERS.in_use() as u64),
        auto_fraction: AUTO_FRACTION,
    }
}

fn refuse_uncounted(limit: Limit) -> Result<(), MemoryError> {
    match limit != Limit::Unlimited && !COUNTERS.are_fed() {
        true => Err(MemoryError::AllocatorNotInstalled),
        false => Ok(()),
    }
}

/// The limit in bytes, if it is not exceeded already.
fn admit(limit: Limit) -> Result<Option<u64>, MemoryError> {
    refuse_uncounted(limit)?;
    let in_use = COUNTERS.in_use() as u64;
    match limit.resolve(room())? {
        Some(limit) if limit < in_use => Err(MemoryError::BelowUse { limit, in_use }),
        limit => Ok(limit),
    }
}
