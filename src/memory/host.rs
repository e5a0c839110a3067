//! The limit on this process's memory, and what glibc's allocator keeps for reuse when it is freed, as
//! [`Growth::OnDemand`](super::Growth::OnDemand) does on a GPU.
//!
//! By default glibc returns freed blocks to the kernel, and each training step takes them again page by page. Its two thresholds are
//! raised to what `mallopt(3)` allows: blocks of up to 32 MiB are then reused, larger ones are still returned, and so are heaps of 64 MiB
//! beyond the first of a thread other than the main one. Other allocators decide for themselves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use candle_core::Device;
use parking_lot::Mutex;

use super::SystemMemory;
use super::allocator::COUNTERS;
use super::device::{CurrentLimit, DeviceMemory};
use super::limit::{AUTO_FRACTION, Backing, Enforcement, Limit, MemoryStats, Room};
use crate::error::{MemoryReading, Result, invalid};
use crate::files;

/// Never dropped, since the counters and their peaks are process-wide.
static HOST: LazyLock<DeviceMemory> =
    LazyLock::new(|| DeviceMemory::new(Device::Cpu, Box::new(Host), CurrentLimit::default()));

/// The host's memory, if a handle to it lives.
pub(super) fn opened() -> Option<DeviceMemory> {
    (Arc::strong_count(&HOST.shared) > 1).then(|| HOST.clone())
}

/// Options for opening the host's memory; from [`DeviceMemory::host`].
///
/// A limit needs a [`TrackingAllocator`](super::TrackingAllocator). It is soft: allocations over it succeed, and trainers make the
/// micro-batch smaller when the use has gone over it. [`DeviceMemory`] has an example.
///
/// ```
/// use candle_headroom::DeviceMemory;
///
/// let memory = DeviceMemory::host().return_freed().open()?;
/// assert!(memory.device().is_cpu());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// assert!(memory.device().is_cpu());
    /// assert_eq!(memory.in_use(), None); // this program has no tracking allocator
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn host() -> HostMemoryBuilder {
        HostMemoryBuilder::default()
    }
}

impl HostMemoryBuilder {
    /// Limits the process's use; unlimited by default. It counts all live bytes of the process, not candle's alone.
    ///
    /// ```standalone_crate
    /// use candle_headroom::{ByteSize, DeviceMemory, TrackingAllocator};
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
    ///
    /// fn main() -> candle_headroom::Result<()> {
    ///     let memory = DeviceMemory::host().limit(ByteSize::gib(1)).open()?;
    ///     assert_eq!(memory.limit(), Some(1 << 30));
    ///     assert_eq!(memory.would_fit(2 << 30), Some(false));
    ///     Ok(())
    /// }
    /// ```
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Leaves it to the system's allocator which freed memory goes back to the system.
    ///
    /// Otherwise, from the first open with the tracking allocator until the process ends, glibc keeps freed blocks of up to 32 MiB for
    /// reuse, as a GPU's pool does with [`Growth::OnDemand`](super::Growth::OnDemand); [`DeviceMemory::trim`] returns them. A limit counts
    /// live bytes either way. Once memory is kept, this changes nothing. Other allocators and systems are never changed.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().return_freed().open()?;
    /// memory.trim()?; // nothing is kept that it could return
    /// assert_eq!(memory.limit(), None);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn return_freed(mut self) -> Self {
        self.returns_freed = true;
        self
    }

    /// Opens the host's memory.
    ///
    /// ```
    /// use candle_headroom::{ByteSize, DeviceMemory};
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// let same = DeviceMemory::host().open()?; // another handle
    /// assert_eq!(memory.limit(), same.limit());
    /// // A limit needs the tracking allocator, which this program does not have.
    /// assert!(DeviceMemory::host().limit(ByteSize::gib(1)).open().unwrap_err().is_memory());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// A limit without the tracking allocator or below the present use, another limit than the one in force, a fraction outside (0, 1], or
    /// [`Limit::Auto`] on a machine that does not report its memory ([`is_memory`](crate::Error::is_memory)). Nothing has changed then.
    pub fn open(self) -> Result<DeviceMemory> {
        static OPENING: Mutex<()> = Mutex::new(());
        let _opening = OPENING.lock();
        match Arc::strong_count(&HOST.shared) {
            // No handle is left, so the last limit has ended.
            1 => HOST.set_limit(self.limit)?,
            _ => HOST.agree(self.limit)?,
        }
        if !self.returns_freed && COUNTERS.are_fed() {
            keep();
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
        let kept = in_use.map_or(0, kept_bytes);
        MemoryStats {
            in_use,
            enforcement: Some(Enforcement::Soft),
            free: system.free().map(|free| free.saturating_add(kept)),
            total: system.capacity(),
            ..MemoryStats::default()
        }
    }

    fn peak(&self, take: bool) -> Option<u64> {
        Some(COUNTERS.peak(take) as u64)
    }

    fn trim(&self) -> Result<()> {
        trim_kept();
        Ok(())
    }

    fn room(&self) -> Result<Room> {
        let in_use = self.usage().in_use;
        let Some(in_use) = in_use else {
            return Err(invalid!(
                Memory,
                "only the tracking allocator can limit host memory: add these two lines to the program:\n    #[global_allocator]\n    static ALLOCATOR: candle_headroom::TrackingAllocator = candle_headroom::TrackingAllocator::system();"
            ));
        };
        let system = SystemMemory::read();
        Ok(Room {
            total: system.capacity(),
            usable: system.usable(in_use.saturating_add(kept_bytes(in_use))),
            auto_fraction: AUTO_FRACTION,
        })
    }
}

/// `DEFAULT_MMAP_THRESHOLD_MAX` on 64 bits; more is refused.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGEST: libc::c_int = 32 << 20;
/// No free block at the end of a heap is large enough to be returned.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const NEVER: libc::c_int = -1;

static KEEPS: AtomicBool = AtomicBool::new(false);

/// Keeps what is freed from now on, until the process ends.
fn keep() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !KEEPS.swap(true, Relaxed) {
        // SAFETY: `mallopt` takes the allocator's own lock and may be called at any time; it refuses values that it does not allow.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
        }
    }
}

/// Returns what is kept to the system.
fn trim_kept() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if KEEPS.load(Relaxed) {
        // `malloc_trim` leaves the end of a thread's own heap alone. Freeing a block of 64 KiB or more returns it, by the threshold.
        // SAFETY: these take the allocator's own locks, change no block that is in use, and free the one that was just taken.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, 0);
            libc::free(std::hint::black_box(libc::malloc(128 << 10)));
            libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
            libc::malloc_trim(0);
        }
    }
}

/// About how many bytes are kept beside the `in_use` that are live: the process's resident memory without files, less those.
fn kept_bytes(in_use: u64) -> u64 {
    if !KEEPS.load(Relaxed) {
        return 0;
    }
    let status = files::text(Path::new("/proc/self/status")).unwrap_or_default();
    let resident = SystemMemory::meminfo(&status, "RssAnon:");
    resident.unwrap_or(0).saturating_sub(in_use)
}
