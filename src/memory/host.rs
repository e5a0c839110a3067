//! The limit on this process's memory.

use std::sync::{Arc, LazyLock};

use candle_core::Device;
use parking_lot::Mutex;

use super::SystemMemory;
use super::counters::COUNTERS;
use super::device::{CurrentLimit, DeviceMemory};
use super::kept;
use super::limit::{AUTO_FRACTION, Limit, Room};
use super::stats::{Backing, Enforcement, MemoryStats};
use crate::error::{MemoryError, MemoryReading, Result};

/// Never dropped, since the counters and their peaks are process-wide.
static HOST: LazyLock<DeviceMemory> =
    LazyLock::new(|| DeviceMemory::new(Device::Cpu, Box::new(Host), CurrentLimit::default()));

/// Options for opening the host's memory; from [`DeviceMemory::host`].
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "call `open()`"]
pub struct HostMemoryBuilder {
    limit: Limit,
    returns_freed: bool,
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

    /// Leaves it to the system's allocator which freed memory goes back to the system.
    ///
    /// Otherwise, from the first open with the tracking allocator until the process ends, glibc keeps freed blocks of up to 32 MiB for
    /// reuse, as a GPU's pool does with [`Growth::OnDemand`](super::Growth::OnDemand); [`DeviceMemory::trim`] returns them. A limit counts
    /// live bytes either way. Once memory is kept, this changes nothing. Other allocators and systems are never changed.
    pub fn return_freed(mut self) -> Self {
        self.returns_freed = true;
        self
    }

    /// Opens the host's memory.
    ///
    /// # Errors
    /// [`MemoryError`]: a limit without the tracking allocator, below the present use, or other than the one in force; a fraction
    /// outside (0, 1]; [`Limit::Auto`] on a machine that does not report its memory. Nothing has changed then.
    pub fn open(self) -> Result<DeviceMemory> {
        static OPENING: Mutex<()> = Mutex::new(());
        let _opening = OPENING.lock();
        match Arc::strong_count(&HOST.shared) {
            // No handle is left, so the last limit has ended.
            1 => HOST.set_limit(self.limit)?,
            _ => HOST.agree(self.limit)?,
        }
        if !self.returns_freed && COUNTERS.are_fed() {
            kept::keep();
        }
        Ok(HOST.clone())
    }
}

#[derive(Debug)]
struct Host;

impl Backing for Host {
    fn usage(&self) -> MemoryReading {
        MemoryReading {
            in_use: COUNTERS.are_fed().then(|| COUNTERS.in_use() as u64),
            ..MemoryReading::default()
        }
    }

    fn stats(&self) -> MemoryStats {
        let system = SystemMemory::read();
        let in_use = self.usage().in_use;
        let kept = in_use.map_or(0, kept::bytes);
        MemoryStats {
            in_use,
            enforcement: Some(Enforcement::Soft),
            free: system.free().map(|free| free.saturating_add(kept)),
            total: system.capacity(),
            first_over_limit: COUNTERS.first_over(),
            ..MemoryStats::default()
        }
    }

    fn take_peak(&self) -> Option<u64> {
        Some(COUNTERS.take_peak() as u64)
    }

    fn trim(&self) -> Result<()> {
        kept::trim();
        Ok(())
    }

    fn room(&self) -> Result<Room> {
        let in_use = self.usage().in_use;
        let in_use = in_use.ok_or(MemoryError::AllocatorNotInstalled)?;
        let system = SystemMemory::read();
        Ok(Room {
            total: system.capacity(),
            usable: system.usable(in_use.saturating_add(kept::bytes(in_use))),
            auto_fraction: AUTO_FRACTION,
        })
    }

    fn set_limit(&self, bytes: Option<u64>) -> Result<()> {
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        COUNTERS.watch(bytes.unwrap_or(usize::MAX));
        Ok(())
    }
}
