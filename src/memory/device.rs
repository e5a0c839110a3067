//! [`DeviceMemory`]: the handles of a device share its limit, its peaks, and the turns that trainers take.
//!
//! What a device can count and enforce is its `Backing`: the counting allocator on the host, a pool on a GPU. Peaks are kept here, because both have
//! one running peak only: it goes into all open scopes whenever one of them begins or is read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytesize::ByteSize;
use candle_core::Device;
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};

use super::limit::{Backing, Limit, MemoryStats, pool_bound};
use crate::error::{Cause, MemoryReading, Neighbour, Result, invalid};

/// The memory of one device: its capacity, its use, and its limit.
///
/// A handle is cheap to clone. While one lives, its settings hold for the whole process: opening the device again with the same
/// settings, or without a limit, gives another handle to the same memory; other settings are an error, as in TensorFlow.
/// [`set_limit`](Self::set_limit) changes the limit for all handles.
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
///
///     let scope = memory.peak_scope();
///     Tensor::zeros((1 << 20,), DType::F32, memory.device())?; // 4 MiB, freed at once
///     assert!(scope.peak().unwrap() - scope.start().unwrap() >= 4 << 20);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    pub(super) shared: Arc<Shared>,
}

/// The state that all handles of a device share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) backing: Box<dyn Backing>,
    device: Device,
    limit: Mutex<CurrentLimit>,
    peaks: Mutex<Peaks>,
    /// Held during a trainer's micro-batch.
    pub(super) turn: ReentrantMutex<()>,
    /// Bytes taken on the device outside the pool when the memory was opened.
    pub(super) others_at_open: u64,
}

/// The limit as requested, and in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CurrentLimit {
    pub(super) asked: Limit,
    pub(super) bytes: Option<u64>,
}

/// Allocator and driver keep one running peak each, which goes into all open scopes whenever one begins or is read.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    overall: u64,
    scopes: Vec<Weak<AtomicU64>>,
}

impl DeviceMemory {
    pub(super) fn new(device: Device, backing: Box<dyn Backing>, limit: CurrentLimit) -> Self {
        let shared = Arc::new(Shared {
            others_at_open: backing.stats().unaccounted.unwrap_or(0),
            backing,
            device,
            limit: Mutex::new(limit),
            peaks: Mutex::default(),
            turn: ReentrantMutex::new(()),
        });
        Self { shared }
    }

    /// Checks that a second opening does not ask for another limit.
    pub(super) fn agree(&self, asked: Limit) -> Result<()> {
        let current = *self.shared.limit.lock();
        if asked == Limit::Unlimited || asked == current.asked {
            return Ok(());
        }
        let describe = |limit: Option<u64>| {
            let limit = limit.map(|limit| format!("a limit of {}", ByteSize(limit)));
            limit.unwrap_or("no limit".to_owned())
        };
        let asked = asked.resolve(|| self.shared.backing.room())?;
        Err(invalid!(
            Memory,
            "the memory of {:?} is open already with {}, not {}: a device has one limit in a process, so share the handle or change it with `set_limit`",
            self.device().location(),
            describe(current.bytes),
            describe(asked)
        ))
    }

    /// The device to create tensors on.
    ///
    /// Create the model on it and not on a second `Device::new_cuda`: candle does not combine tensors of two devices that were created
    /// separately, even on one GPU.
    ///
    /// ```
    /// use candle_core::{DType, Tensor};
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, memory.device())?;
    /// assert!(x.device().is_cpu());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The limit in bytes, if one is set: what [`Limit::Fraction`] and [`Limit::Auto`] came to when it was set. It does not follow the
    /// memory that becomes free later.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// assert_eq!(memory.limit(), None); // unlimited by default
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn limit(&self) -> Option<u64> {
        self.shared.limit.lock().bytes
    }

    /// Raises or lowers the limit for every handle of this device. Trainers follow at their next micro-batch. On a GPU a hard limit
    /// stays hard: live tensors stay where they are, and new ones come from a new pool that may grow to the rest of the limit.
    ///
    /// It waits for the work that is queued on the device. A limit below the bytes in use is an error with both numbers; drop tensors first, or
    /// ask for more.
    ///
    /// ```no_run
    /// use candle_headroom::memory::Limit;
    /// use candle_headroom::{ByteSize, DeviceMemory};
    ///
    /// let memory = DeviceMemory::cuda(0).limit(ByteSize::gib(20)).open()?;
    /// // Another job begins on the same GPU: make room for it, and take it back later.
    /// memory.set_limit(ByteSize::gib(8))?;
    /// memory.trim()?;
    /// memory.set_limit(Limit::Fraction(0.9))?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// As when the memory is opened ([`is_memory`](crate::Error::is_memory)), and a [`DeviceFault`](crate::DeviceFault), or candle's error, if the device is
    /// lost. The limit then stays as it was.
    pub fn set_limit(&self, limit: impl Into<Limit>) -> Result<()> {
        let (asked, backing) = (limit.into(), &self.shared.backing);
        backing.synchronize(self.device())?;
        let mut current = self.shared.limit.lock();
        let bytes = asked.resolve(|| backing.room())?;
        if let (Some(limit), Some(in_use)) = (bytes, self.in_use())
            && limit < in_use
        {
            let (limit, in_use) = (ByteSize(limit), ByteSize(in_use));
            return Err(invalid!(
                Memory,
                "a limit of {limit} is below the {in_use} in use already: raise it, or set it before building the model"
            ));
        }
        backing.set_limit(bytes)?;
        *current = CurrentLimit { asked, bytes };
        Ok(())
    }

    /// Bytes in use now; `None` if they are not counted, as on the host without a [`TrackingAllocator`](super::TrackingAllocator).
    ///
    /// On a GPU these are the tensors of the pool, not what other libraries hold. It is cheap enough for every micro-batch: nothing waits
    /// for the device.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// match memory.in_use() {
    ///     Some(bytes) => println!("{bytes} bytes are in use"),
    ///     None => assert_eq!(memory.stats().peak, None), // nothing counts
    /// }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn in_use(&self) -> Option<u64> {
        self.shared.backing.usage().in_use
    }

    /// Whether `bytes` more would stay within the limit and the free memory of the machine or GPU; `None` if neither is known. It is an
    /// estimate: others allocate too, and free memory may be fragmented. The pool's unused memory counts as free.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// // 8192 x 8192 numbers of 4 bytes.
    /// let table = 8192 * 8192 * 4;
    /// match memory.would_fit(table) {
    ///     Some(false) => println!("take a smaller table"),
    ///     Some(true) | None => {} // it may fit: try, and be ready for an error
    /// }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn would_fit(&self, bytes: u64) -> Option<bool> {
        let stats = self.stats();
        let limited = stats.in_use.zip(stats.limit);
        let in_limit = limited.map(|(in_use, limit)| in_use.saturating_add(bytes) <= limit);
        let unused = stats.fragmentation().unwrap_or(0);
        let in_machine = stats.free.map(|free| bytes <= free.saturating_add(unused));
        let known = in_limit.into_iter().chain(in_machine);
        known.reduce(|in_limit, in_machine| in_limit && in_machine)
    }

    /// All figures. It reads files of the operating system or asks the driver: call it between steps, not between operations.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// let stats = memory.stats();
    /// assert_eq!(stats.reserved, None); // the host has no pool
    /// println!("{stats}"); // in use 61.2 MiB, peak 80.0 MiB, no limit; `n/a` without the tracking allocator
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn stats(&self) -> MemoryStats {
        let (peak, limit) = (self.collect_peak(false), self.limit());
        let stats = self.shared.backing.stats();
        MemoryStats {
            peak: stats.in_use.map(|_| peak),
            limit,
            enforcement: stats.enforcement.filter(|_| limit.is_some()),
            ..stats
        }
    }

    /// Measures the peak from now on, while the scope lives: what one forward pass or one function takes at most, whatever ran before.
    ///
    /// ```
    /// use candle_core::{DType, Tensor};
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// let scope = memory.peak_scope();
    /// let x = Tensor::ones((256, 256), DType::F32, memory.device())?;
    /// x.matmul(&x)?.sum_all()?;
    /// if let (Some(before), Some(peak)) = (scope.start(), scope.peak()) {
    ///     println!("{} bytes more at the peak than before", peak - before);
    /// } // else the program has no tracking allocator
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn peak_scope(&self) -> PeakScope {
        let start = self.in_use();
        let highest = Arc::new(AtomicU64::new(start.unwrap_or(0)));
        self.collect_peak(true);
        let scope = Arc::downgrade(&highest);
        self.shared.peaks.lock().scopes.push(scope);
        PeakScope {
            memory: self.clone(),
            start,
            highest,
        }
    }

    /// Takes the running peak over into all open scopes, and returns the highest use since the last reset. With `take`, the running peak begins
    /// anew: the driver reads it and resets it in two calls, between which another thread's peak would be lost, so only where a new
    /// one is needed.
    fn collect_peak(&self, take: bool) -> u64 {
        let mut peaks = self.shared.peaks.lock();
        let peak = self.shared.backing.peak(take).unwrap_or(0);
        peaks.overall = peaks.overall.max(peak);
        peaks.scopes.retain(|scope| scope.strong_count() > 0);
        for highest in peaks.scopes.iter().filter_map(Weak::upgrade) {
            highest.fetch_max(peak, Relaxed);
        }
        peaks.overall
    }

    /// Restarts [`MemoryStats::peak`] and [`MemoryStats::peak_reserved`] at the present use, for a figure of each epoch for example. Open
    /// scopes keep their peaks. It acts on all handles of the device.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// for epoch in 0..3 {
    ///     memory.reset_peak();
    ///     // … train …
    ///     println!("epoch {epoch}: {}", memory.stats());
    /// }
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn reset_peak(&self) {
        self.collect_peak(true);
        self.shared.peaks.lock().overall = 0;
        self.shared.backing.reset_peak_reserved();
    }

    /// Waits for the queued work, and returns the pool's unused memory to the device; on the host, what glibc keeps
    /// for reuse to the system ([`return_freed`](super::HostMemoryBuilder::return_freed)).
    ///
    /// Call it where a program pauses and others may use the device. In a training loop it costs a wait, and the next step takes the
    /// memory from the driver again.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let memory = DeviceMemory::host().open()?;
    /// // … an evaluation, whose tensors are dropped …
    /// memory.trim()?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// A [`DeviceFault`](crate::DeviceFault), or candle's error, if the device is lost.
    pub fn trim(&self) -> Result<()> {
        self.shared.backing.synchronize(self.device())?;
        self.shared.backing.trim()
    }

    /// Bytes in use, reserved and allowed now, for a [`BatchPolicy`](crate::batch::BatchPolicy) to plan with. It only reads: no pool is
    /// created, trimmed or switched, and nothing waits for the device.
    ///
    /// Its other fields are `None`: the driver and the operating system are not asked, as [`stats`](Self::stats) does.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let reading = DeviceMemory::host().open()?.reading();
    /// assert_eq!((reading.limit, reading.free), (None, None));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn reading(&self) -> MemoryReading {
        MemoryReading {
            limit: self.limit(),
            ..self.shared.backing.usage()
        }
    }
}

/// The peak of a device's memory since the scope's creation; from [`DeviceMemory::peak_scope`].
///
/// Scopes may nest and overlap, in one thread or several; each measures the whole process's use of the device.
///
/// ```standalone_crate
/// use candle_headroom::memory::PeakScope;
/// use candle_headroom::{DeviceMemory, TrackingAllocator};
///
/// #[global_allocator]
/// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
///
/// fn main() -> candle_headroom::Result<()> {
///     let memory = DeviceMemory::host().open()?;
///     let took = |scope: &PeakScope| scope.peak().unwrap() - scope.start().unwrap();
///     let whole = memory.peak_scope();
///     drop(vec![1u8; 4 << 20]);
///     let later = memory.peak_scope(); // does not see what was freed before
///     assert!(took(&whole) >= 4 << 20 && took(&later) < 4 << 20);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a scope that is dropped at once measures nothing"]
pub struct PeakScope {
    memory: DeviceMemory,
    start: Option<u64>,
    highest: Arc<AtomicU64>,
}

impl PeakScope {
    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Bytes in use when the scope began; `None` if they are not counted.
    pub fn start(&self) -> Option<u64> {
        self.start
    }

    /// The use now, and the highest since the last call, from which on the scope measures again; `None` if they are not counted.
    #[cfg(feature = "layers")]
    pub(crate) fn take(&self) -> Option<(u64, u64)> {
        self.start?;
        self.memory.collect_peak(true);
        let now = self.memory.in_use()?;
        Some((now, self.highest.swap(now, Relaxed).max(now)))
    }

    /// The highest use since the scope began, in bytes; `None` if it is not counted.
    ///
    /// It is the use of the whole process on the device, what was held before included: subtract [`start`](Self::start) for what the
    /// work took. On the host it is exact within [`PEAK_ERROR`](super::PEAK_ERROR) bytes. It may be read several times.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    ///
    /// let scope = DeviceMemory::host().open()?.peak_scope();
    /// // Both are known, or neither is, as in this program without a tracking allocator.
    /// assert_eq!((scope.start(), scope.peak()), (None, None));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn peak(&self) -> Option<u64> {
        self.memory.collect_peak(false);
        self.start.map(|_| self.highest.load(Relaxed))
    }
}

/// A neighbour is blamed if memory outside the pool has grown by more than the device's capacity divided by this.
const NEIGHBOUR_FRACTION: u64 = 64;

/// How long a trainer waits for its turn. A closure that waits for another trainer on the same memory would otherwise wait forever.
const PATIENCE: Duration = Duration::from_secs(60);

impl DeviceMemory {
    /// Waits until no other thread works on a micro-batch on this memory, so that each sees the room that it plans for, and keeps others
    /// waiting until the guard is dropped. `None` if that took longer than [`PATIENCE`], or on the host without a limit. A thread may
    /// take several turns at once.
    pub(crate) fn turn(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        match self.device().is_cpu() && self.limit().is_none() {
            true => None,
            false => wait(&self.shared.turn, PATIENCE),
        }
    }

    /// Does the work on the pool that is due before a micro-batch: memory that older pools have given back since the limit changed
    /// becomes room of the current pool. On a GPU it may create, trim and switch pools.
    pub(crate) fn maintain(&self) {
        self.shared.backing.maintain();
    }

    /// The [`reading`](Self::reading), and on a GPU the driver's free and total memory: a limit on the host counts this process alone.
    pub(crate) fn surroundings(&self) -> MemoryReading {
        let now = self.reading();
        let device = now.reserved.map(|_| self.shared.backing.stats());
        let (free, total) = device.map_or((None, None), |stats| (stats.free, stats.total));
        MemoryReading { free, total, ..now }
    }

    /// Bytes that limit and device leave; on the host the limit alone. `None` if nothing bounds them.
    pub(crate) fn room(&self) -> Option<u64> {
        let now = self.surroundings();
        let bound = now.limit.into_iter().chain(pool_bound(&now)).min()?;
        Some(bound.saturating_sub(now.in_use?))
    }

    /// The memory's state when work that began with `scope` fails, and the cause that follows from it if the device has refused an
    /// allocation. `need` is the known use of work of the failed size, in bytes.
    pub(crate) fn refused(&self, scope: &PeakScope, need: Option<u64>) -> (MemoryReading, Cause) {
        let stats = self.stats();
        let bytes = MemoryReading {
            requested: None,
            in_use: stats.in_use,
            reserved: stats.reserved,
            peak: scope.peak(),
            limit: stats.limit,
            free: stats.free,
            total: stats.total,
        };
        let others = stats.unaccounted.unwrap_or(0);
        let others_grew = others.saturating_sub(self.shared.others_at_open);
        (bytes, cause(&bytes, need, others_grew))
    }

    /// Other processes on the device, the largest first. It asks the driver and may take seconds.
    pub(crate) fn neighbours(&self) -> Vec<Neighbour> {
        self.shared.backing.neighbours()
    }
}

/// Why an allocation from a pool failed; its size is not known. `others_grew` is the growth of the memory outside the pool since opening.
fn cause(bytes: &MemoryReading, need: Option<u64>, others_grew: u64) -> Cause {
    let (Some(reserved), Some(free), Some(total)) = (bytes.reserved, bytes.free, bytes.total)
    else {
        return Cause::Unknown;
    };
    let used = bytes.peak.or(bytes.in_use).unwrap_or(reserved);
    let unused = reserved.saturating_sub(used);
    let limit_leaves = bytes.limit.map(|limit| limit.saturating_sub(reserved));
    let growth = limit_leaves.unwrap_or(u64::MAX).min(free);
    match need {
        // More was left than the whole work takes.
        Some(need) if growth >= need => Cause::Unknown,
        Some(need) if growth.saturating_add(unused) >= need => Cause::Fragmented,
        _ if limit_leaves.is_some_and(|leaves| leaves <= free) => Cause::Limit,
        _ if others_grew > total / NEIGHBOUR_FRACTION => Cause::Neighbour,
        _ => Cause::DeviceFull,
    }
}

fn wait(turn: &ReentrantMutex<()>, patience: Duration) -> Option<ReentrantMutexGuard<'_, ()>> {
    let guard = turn.try_lock_for(patience);
    if guard.is_none() {
        tracing::warn!(
            seconds = patience.as_secs_f64(),
            "another trainer on this memory has not finished its micro-batch: going on beside it, memory may run out"
        );
    }
    guard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_time_out_it_goes_on() {
        let turn = ReentrantMutex::new(());
        let patience = Duration::from_millis(20);
        let held = wait(&turn, patience);
        std::thread::scope(|threads| {
            let other = threads.spawn(|| wait(&turn, patience).is_none());
            assert!(other.join().unwrap());
        });
        drop(held);
        assert!(wait(&turn, patience).is_some());
    }
}
