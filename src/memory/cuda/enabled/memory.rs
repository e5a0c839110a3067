use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::device;
use parking_lot::Mutex;

use super::pool::free_and_total;
use super::pools::{Pools, STEP};
use super::work::synchronize;
use crate::environment::nvml;
use crate::error::{MemoryError, MemoryReading, Neighbour, Result};
use crate::memory::limit::{DEVICE_AUTO_FRACTION, Room};
use crate::memory::stats::{Backing, Enforcement, MemoryStats};

/// The time limit for NVML to list processes, which usually takes a few hundredths of a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// A GPU's memory, while a handle lives.
#[derive(Debug)]
pub(super) struct CudaMemory {
    pub(super) context: Arc<CudaContext>,
    /// Whether the driver enforces `maxSize`.
    pub(super) is_hard: bool,
    pub(super) pools: Mutex<Pools>,
}

/// The room of a device with `free` bytes free and `held` bytes in the pools.
pub(super) fn room(free: u64, total: u64, held: u64) -> Room {
    Room {
        total: Some(total),
        usable: Some(free.saturating_add(held)),
        auto_fraction: DEVICE_AUTO_FRACTION,
    }
}

/// The greatest size of the pools for a limit; `None` if there is no limit, or if the driver does not enforce it.
pub(super) fn max_size(limit: Option<u64>, is_hard: bool, total: u64) -> Result<Option<u64>> {
    if let Some(limit) = limit.filter(|&limit| limit < STEP) {
        return Err(MemoryError::TooSmall { limit, least: STEP }.into());
    }
    // Not every driver accepts a `maxSize` above the capacity.
    Ok(limit.filter(|_| is_hard).map(|limit| limit.min(total)))
}

impl Backing for CudaMemory {
    fn usage(&self) -> MemoryReading {
        let pools = self.pools.lock();
        MemoryReading {
            in_use: pools.used().ok(),
            reserved: pools.reserved().ok(),
            ..MemoryReading::default()
        }
    }

    fn stats(&self) -> MemoryStats {
        let usage = self.usage();
        let memory = free_and_total(&self.context).ok();
        let outside = memory.zip(usage.reserved);
        MemoryStats {
            in_use: usage.in_use,
            reserved: usage.reserved,
            peak_reserved: self.pools.lock().reserved_high().ok(),
            enforcement: Some(match self.is_hard {
                true => Enforcement::Hard,
                false => Enforcement::Soft,
            }),
            free: memory.map(|(free, _)| free),
            total: memory.map(|(_, total)| total),
            unaccounted: outside
                .map(|((free, total), reserved)| total.saturating_sub(free + reserved)),
            ..MemoryStats::default()
        }
    }

    fn take_peak(&self) -> Option<u64> {
        self.pools.lock().take_used_high().ok()
    }

    fn room(&self) -> Result<Room> {
        let (free, total) = free_and_total(&self.context).w()?;
        Ok(room(free, total, self.pools.lock().reserved().w()?))
    }

    fn set_limit(&self, bytes: Option<u64>) -> Result<()> {
        let (_, total) = free_and_total(&self.context).w()?;
        let max_size = max_size(bytes, self.is_hard, total)?;
        let mut pools = self.pools.lock();
        match max_size == pools.limit {
            true => pools.hand_on(),
            false => pools.replace(max_size),
        }
    }

    fn synchronize(&self, device: &Device) -> Result<()> {
        synchronize(device)
    }

    fn trim(&self) -> Result<()> {
        Ok(self.pools.lock().trim().w()?)
    }

    fn maintain(&self) {
        // On failure the pool stays as small as it was.
        let _ = self.pools.lock().hand_on();
    }

    fn reset_peak_reserved(&self) {
        // Fails only on a lost device, which every call that can return an error reports.
        let _ = self.pools.lock().restart_reserved_high();
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        let uuid = device::get_uuid(self.context.cu_device());
        let uuid = uuid.map(|uuid| nvml::uuid_text(uuid.bytes.map(|byte| byte as u8)));
        uuid.map_or(Vec::new(), |uuid| nvml::neighbours(&uuid, PATIENCE))
    }
}
