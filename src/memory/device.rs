use std::sync::Arc;

use candle_core::Device;

use super::backing::Backing;
use super::limit::Limit;
use super::scope::PeakScope;
use super::stats::MemoryStats;
use super::turn::Turn;
use crate::error::{Cause, MemoryReading, Remedy, ResourceExhausted, Result};

/// The memory of one device: its capacity, its use, and its limit.
///
/// A handle is cheap to clone. While one of a device's handles lives, its settings hold for the whole process: opening the device again with the
/// same settings, or without a limit, gives another handle to the same memory; other settings are an error, as in TensorFlow.
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
    backing: Arc<dyn Backing>,
}

impl DeviceMemory {
    pub(super) fn new(device: Device, backing: Arc<dyn Backing>) -> Self {
        Self { device, backing }
    }

    /// The device to create tensors on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The limit in bytes, if one is set.
    pub fn limit(&self) -> Option<u64> {
        self.backing.limit()
    }

    /// Raises or lowers the limit for every handle of this device. Trainers follow at their next micro-batch.
    ///
    /// On a GPU a hard limit stays hard: live tensors stay where they are, and new ones come from a new pool that may grow to the rest of the limit.
    ///
    /// # Errors
    /// [`MemoryError`](crate::error::MemoryError), as for [`HostMemoryBuilder::open`](super::HostMemoryBuilder::open) and [`CudaMemoryBuilder::open`](super::CudaMemoryBuilder::open); the limit then
    /// stays as it was.
    pub fn set_limit(&self, limit: impl Into<Limit>) -> Result<()> {
        self.backing.set_limit(limit.into())
    }

    /// Bytes in use now; `None` if they are not counted.
    pub fn in_use(&self) -> Option<u64> {
        self.backing.in_use()
    }

    /// Whether `bytes` more would stay within the limit and the free memory of the machine or GPU; `None` if neither is known.
    /// This is an estimate: others allocate too, and free memory may be fragmented.
    pub fn would_fit(&self, bytes: u64) -> Option<bool> {
        let in_limit = match (self.in_use(), self.limit()) {
            (Some(in_use), Some(limit)) => Some(in_use.saturating_add(bytes) <= limit),
            _ => None,
        };
        let in_machine = self.backing.free().map(|free| bytes <= free);
        match (in_limit, in_machine) {
            (Some(in_limit), Some(in_machine)) => Some(in_limit && in_machine),
            (known, None) | (None, known) => known,
        }
    }

    /// All figures. It reads files of the operating system or asks the driver: call it between steps, not between operations.
    pub fn stats(&self) -> MemoryStats {
        self.backing.stats()
    }

    /// Restarts [`MemoryStats::peak`] and [`MemoryStats::peak_reserved`] at the present use. Open scopes keep their peaks.
    pub fn reset_peak(&self) {
        self.backing.reset_peak();
    }

    /// Returns the pool's unused memory to the device; on the host the allocator does so by itself.
    ///
    /// It waits for the queued work, since memory that is still used cannot be returned.
    ///
    /// # Errors
    /// A [`DeviceFault`](crate::DeviceFault), or candle's error, if the device is lost.
    pub fn trim(&self) -> Result<()> {
        self.backing.trim()
    }

    /// Measures the peak from now on, while the scope lives.
    pub fn peak_scope(&self) -> PeakScope {
        PeakScope::new(Arc::clone(&self.backing))
    }

    /// Bytes in use, reserved and allowed now: what a [`BatchPolicy`](crate::batch::BatchPolicy) plans with. It only reads: no pool is created, trimmed or
    /// switched, and nothing waits for the device.
    pub fn reading(&self) -> MemoryReading {
        self.backing.reading()
    }

    /// Does what is due on the pool before a micro-batch: what pools from before a change of the limit have given back becomes room of the
    /// current one. On a GPU it may create, trim and switch pools.
    pub(crate) fn maintain(&self) {
        self.backing.maintain();
    }

    /// Waits, at most 60 seconds, until no other thread works on a micro-batch on this memory, and keeps others waiting until the turn is dropped.
    ///
    /// One thread may take several turns at once. On the host, trainers wait for each other only under a limit.
    pub(crate) fn turn(&self) -> Turn<'_> {
        match self.device.is_cpu() && self.limit().is_none() {
            true => Turn::free(),
            false => self.backing.turns().take(),
        }
    }

    /// The [`reading`](Self::reading), and on a GPU what the driver has left: a limit on the host counts this process alone.
    pub(crate) fn surroundings(&self) -> MemoryReading {
        let now = self.reading();
        let held = now.reserved.zip(now.in_use);
        let unused = held.map(|(reserved, in_use)| reserved.saturating_sub(in_use));
        MemoryReading {
            free: unused.and_then(|unused| Some(self.backing.free()?.saturating_sub(unused))),
            ..now
        }
    }

    /// Bytes that limit and device leave; on the host the limit alone. `None` if nothing bounds them.
    pub(crate) fn room(&self) -> Option<u64> {
        let now = self.surroundings();
        let held = now.free.zip(now.reserved);
        let device = held.map(|(free, reserved)| free.saturating_add(reserved));
        let bound = now.limit.into_iter().chain(device).min()?;
        Some(bound.saturating_sub(now.in_use?))
    }

    /// The exhaustion to report if the use has exceeded the limit since `scope` began.
    pub(crate) fn check(&self, scope: &PeakScope) -> Result<(), Box<ResourceExhausted>> {
        let (Some(limit), Some(peak)) = (self.limit(), scope.peak()) else {
            return Ok(());
        };
        if peak <= limit {
            return Ok(());
        }
        let mut exhausted = ResourceExhausted::new(self.backing.resource(), Cause::Limit);
        self.describe(scope, None, &mut exhausted);
        Err(Box::new(exhausted))
    }

    /// Adds the memory's state to an exhaustion since `scope` began. `need` is the known use of work of the failed size, in bytes.
    pub(crate) fn describe(
        &self,
        scope: &PeakScope,
        need: Option<u64>,
        exhausted: &mut ResourceExhausted,
    ) {
        exhausted.device = Some(self.device.location());
        exhausted.bytes.peak = scope.peak();
        self.backing.describe(exhausted, need);
    }

    /// Adds the other processes on the device, and as a remedy the end of the largest one if that may be the reason.
    /// It asks the driver and may take seconds.
    pub(crate) fn name_neighbours(&self, exhausted: &mut ResourceExhausted) {
        exhausted.neighbours = self.backing.neighbours();
        let largest = exhausted.neighbours.first();
        let in_the_way = match exhausted.cause {
            Cause::Neighbour | Cause::DeviceFull => true,
            Cause::NeverFits => exhausted.bytes.limit.is_none(),
            _ => false,
        };
        if let Some(neighbour) = largest.filter(|_| in_the_way) {
            let advice = format!("the GPU without {neighbour}");
            let remedy = Remedy::new(advice, neighbour.bytes);
            exhausted.remedies.push(remedy);
        }
    }
}
