use std::sync::Arc;
use std::time::Duration;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::device;
use candle_core::{Device, DeviceLocation};
use parking_lot::Mutex;

use super::cause::Situation;
use super::driver;
use super::pools::{Pools, STEP};
use super::recovery::{driver_error, synchronize};
use crate::error::{
    Cause, MemoryError, MemoryReading, Neighbour, Resource, ResourceExhausted, Result,
};
use crate::memory::backing::Backing;
use crate::memory::cuda::growth::Growth;
use crate::memory::limit::{DEVICE_AUTO_FRACTION, Limit, Room};
use crate::memory::peaks::Scopes;
use crate::memory::stats::{Enforcement, MemoryStats};
use crate::memory::turn::Turns;
use crate::nvml;

/// The time limit for NVML to list processes, which usually takes a few hundredths of a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// A GPU's memory, while a handle lives.
#[derive(Debug)]
pub(super) struct CudaMemory {
    context: Arc<CudaContext>,
    pub(super) device: Device,
    growth: Growth,
    /// Whether the driver enforces `maxSize`.
    is_hard: bool,
    /// Bytes taken outside the pool when the memory was opened.
    others_at_open: u64,
    state: Mutex<State>,
    scopes: Mutex<Scopes>,
    turns: Turns,
}

#[derive(Debug)]
struct State {
    asked: Limit,
    /// In bytes.
    limit: Option<u64>,
    pools: Pools,
}

impl CudaMemory {
    /// `pools` must be current already; the limit is given as asked for and in bytes.
    pub(super) fn new(
        (context, device): (Arc<CudaContext>, Device),
        (growth, is_hard): (Growth, bool),
        (asked, limit): (Limit, Option<u64>),
        pools: Pools,
    ) -> Self {
        let mut memory = Self {
            context,
            device,
            growth,
            is_hard,
            others_at_open: 0,
            state: Mutex::new(State {
                asked,
                limit,
                pools,
            }),
            scopes: Mutex::new(Scopes::new()),
            turns: Turns::new(),
        };
        memory.others_at_open = memory.stats().unaccounted.unwrap_or(0);
        memory
    }

    /// Checks that no other settings are asked for than those in force.
    pub(super) fn agree(&self, growth: Option<Growth>, asked: Limit) -> Result<()> {
        let ordinal = self.context.ordinal();
        if let Some(growth) = growth.filter(|&growth| growth != self.growth) {
            let (open, asked) = (format!("{:?}", self.growth), format!("{growth:?}"));
            return Err(MemoryError::OtherGrowth {
                ordinal,
                open,
                asked,
            }
            .into());
        }
        let state = self.state.lock();
        if asked == Limit::Unlimited || asked == state.asked {
            return Ok(());
        }
        Err(MemoryError::AlreadyOpen {
            device: DeviceLocation::Cuda { gpu_id: ordinal },
            open: state.limit,
            asked: asked.resolve(self.room(&state)?)?,
        }
        .into())
    }

    fn room(&self, state: &State) -> Result<Room> {
        let (free, total) = driver::free_and_total(&self.context).map_err(driver_error)?;
        let held = state.pools.reserved().map_err(driver_error)?;
        Ok(room(free, total, held))
    }
}

/// The room of a device with `free` bytes free and `held` bytes in the pools.
pub(super) fn room(free: u64, total: u64, held: u64) -> Room {
    Room {
        total: Some(total),
        usable: Some(free.saturating_add(held)),
        auto_fraction: DEVICE_AUTO_FRACTION,
    }
}

impl Backing for CudaMemory {
    fn resource(&self) -> Resource {
        Resource::DeviceMemory
    }

    fn limit(&self) -> Option<u64> {
        self.state.lock().limit
    }

    fn set_limit(&self, asked: Limit) -> Result<()> {
        // Freed memory stays in the pool until its last use has finished.
        synchronize(&self.device)?;
        // The peak of a pool that is about to be replaced is not read again.
        self.scopes.lock().overall(self.take_peak());
        let mut state = self.state.lock();
        let room = self.room(&state)?;
        let limit = asked.resolve(room)?;
        let in_use = state.pools.used().map_err(driver_error)?;
        if let Some(limit) = limit.filter(|&limit| limit < in_use) {
            return Err(MemoryError::BelowUse { limit, in_use }.into());
        }
        if let Some(limit) = limit.filter(|&limit| limit < STEP) {
            return Err(MemoryError::TooSmall { limit, least: STEP }.into());
        }
        if self.is_hard && limit != state.limit {
            let total = room.total.unwrap_or(u64::MAX);
            state.pools.replace(limit.map(|limit| limit.min(total)))?;
        } else {
            state.pools.hand_on()?;
        }
        state.asked = asked;
        state.limit = limit;
        Ok(())
    }

    fn in_use(&self) -> Option<u64> {
        self.state.lock().pools.used().ok()
    }

    fn free(&self) -> Option<u64> {
        let (free, _) = driver::free_and_total(&self.context).ok()?;
        let pools = &self.state.lock().pools;
        let unused = pools.reserved().ok()?.saturating_sub(pools.used().ok()?);
        Some(free.saturating_add(unused))
    }

    fn reading(&self) -> MemoryReading {
        let state = self.state.lock();
        MemoryReading {
            in_use: state.pools.used().ok(),
            reserved: state.pools.reserved().ok(),
            limit: state.limit,
            ..MemoryReading::default()
        }
    }

    fn maintain(&self) {
        // On failure the pool stays as small as it was.
        let _ = self.state.lock().pools.hand_on();
    }

    fn stats(&self) -> MemoryStats {
        let peak = self.scopes.lock().overall(self.take_peak());
        let memory = driver::free_and_total(&self.context).ok();
        let state = self.state.lock();
        let reserved = state.pools.reserved().ok();
        let in_use = state.pools.used().ok();
        MemoryStats {
            in_use,
            peak: in_use.map(|_| peak),
            reserved,
            peak_reserved: state.pools.reserved_high().ok(),
            limit: state.limit,
            enforcement: state.limit.map(|_| match self.is_hard {
                true => Enforcement::Hard,
                false => Enforcement::Soft,
            }),
            free: memory.map(|(free, _)| free),
            total: memory.map(|(_, total)| total),
            unaccounted: memory
                .zip(reserved)
                .map(|((free, total), reserved)| total.saturating_sub(free + reserved)),
            first_over_limit: None,
        }
    }

    fn take_peak(&self) -> Option<u64> {
        self.state.lock().pools.take_used_high().ok()
    }

    fn scopes(&self) -> &Mutex<Scopes> {
        &self.scopes
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn reset_peak(&self) {
        self.scopes.lock().reset(self.take_peak());
        // Fails only on a lost device, which every call that can return an error reports.
        let _ = self.state.lock().pools.restart_reserved_high();
    }

    fn trim(&self) -> Result<()> {
        // Memory that is still used cannot be returned.
        synchronize(&self.device)?;
        self.state.lock().pools.trim().map_err(driver_error)
    }

    fn describe(&self, exhausted: &mut ResourceExhausted, need: Option<u64>) {
        let stats = self.stats();
        exhausted.bytes = MemoryReading {
            requested: None,
            in_use: stats.in_use,
            reserved: stats.reserved,
            peak: exhausted.bytes.peak,
            limit: stats.limit,
            free: stats.free,
            total: stats.total,
        };
        if exhausted.cause == Cause::Unknown && exhausted.resource == Resource::DeviceMemory {
            let others = stats.unaccounted.unwrap_or(0);
            let situation = Situation {
                bytes: exhausted.bytes,
                need,
                others_grew: others.saturating_sub(self.others_at_open),
            };
            exhausted.cause = situation.cause();
        }
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        let uuid = device::get_uuid(self.context.cu_device());
        let bytes = uuid.map(|uuid| uuid.bytes.map(|byte| byte as u8));
        let list = |bytes| nvml::neighbours(&nvml::uuid_text(bytes), PATIENCE);
        bytes.map_or(Vec::new(), list)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.state.get_mut().pools.leave();
    }
}
