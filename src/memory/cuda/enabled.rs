use std::sync::Arc;

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use candle_core::{Device, DeviceLocation};
use parking_lot::Mutex;

use super::cause::Situation;
use super::driver::{self, Handle};
use super::pool::Pool;
use super::recovery::{driver_error, settle};
use super::{Growth, registry};
use crate::error::{Cause, MemoryError, MemoryReading, Resource, ResourceExhausted, Result};
use crate::memory::backing::Backing;
use crate::memory::limit::Room;
use crate::memory::scope::Scopes;
use crate::memory::stats::{Enforcement, MemoryStats};
use crate::memory::{DEVICE_AUTO_FRACTION, DeviceMemory, Limit};

/// The step in which GPUs map memory. A driver rounds a pool's greatest size up; in whole steps it stays within the limit.
const STEP: u64 = 2 << 20;

/// A pool of this size, and twice that from it, tells whether the driver keeps a pool's greatest size.
const TRIAL: u64 = 32 << 20;

/// A device's memory while a handle lives.
#[derive(Debug)]
pub(super) struct CudaMemory {
    ordinal: usize,
    context: Arc<CudaContext>,
    device: Device,
    growth: Growth,
    /// Whether the driver keeps a pool's greatest size.
    is_hard: bool,
    /// The pool that was current before ours.
    before: Handle,
    /// What was taken on the device by others, and by CUDA itself, when the memory was opened.
    others_at_open: u64,
    state: Mutex<State>,
    scopes: Mutex<Scopes>,
}

#[derive(Debug)]
struct State {
    asked: Limit,
    /// In bytes.
    limit: Option<u64>,
    current: Pool,
    /// Pools from before the limit was changed, with the tensors that have lived since.
    retired: Vec<Pool>,
}

pub(super) fn open(ordinal: usize, growth: Option<Growth>, limit: Limit) -> Result<DeviceMemory> {
    let (memory, is_shared) = registry::share_or(ordinal, |see_through| {
        let growth = growth.unwrap_or_default();
        Ok(Arc::new(CudaMemory::new(
            ordinal,
            growth,
            limit,
            see_through,
        )?))
    })?;
    if is_shared {
        memory.agree(growth, limit)?;
    }
    Ok(DeviceMemory::new(memory.device.clone(), memory))
}

impl CudaMemory {
    fn new(
        ordinal: usize,
        growth: Growth,
        asked: Limit,
        see_through: &dyn Fn(Handle) -> Handle,
    ) -> Result<Self> {
        let context = context(ordinal)?;
        if !context.has_async_alloc() {
            return Err(MemoryError::NoPools { ordinal }.into());
        }
        let (free, total) = driver::free_and_total(&context).map_err(driver_error)?;
        let limit = asked.resolve(room(free, total, 0))?;
        let before = see_through(driver::current_pool(&context).map_err(driver_error)?);
        let stream = context.default_stream();
        let is_hard = keeps_max_size(&context, &stream, free).map_err(driver_error)?;
        let current =
            new_pool(&context, growth, limit.filter(|_| is_hard)).map_err(driver_error)?;
        if growth == Growth::Preallocate {
            let bytes = match limit {
                Some(limit) => limit,
                None => Limit::Auto.resolve(room(free, total, 0))?.unwrap_or(free),
            };
            fill(&current, bytes, &stream, free)?;
        }
        current.make_current().map_err(driver_error)?;
        let device = match Device::new_cuda_with_stream(ordinal) {
            Ok(device) => device,
            Err(error) => {
                restore(&context, before);
                return Err(error.into());
            }
        };
        let mut memory = Self {
            ordinal,
            context,
            device,
            growth,
            is_hard,
            before,
            others_at_open: 0,
            state: Mutex::new(State {
                asked,
                limit,
                current,
                retired: Vec::new(),
            }),
            scopes: Mutex::new(Scopes::new()),
        };
        memory.others_at_open = memory.stats().unaccounted.unwrap_or(0);
        Ok(memory)
    }

    /// The pool that was current before ours.
    pub(super) fn before(&self) -> Handle {
        self.before
    }

    /// The pool that serves new tensors.
    pub(super) fn current(&self) -> Handle {
        self.state.lock().current.handle()
    }

    fn agree(&self, growth: Option<Growth>, asked: Limit) -> Result<()> {
        if let Some(growth) = growth.filter(|&growth| growth != self.growth) {
            return Err(MemoryError::OtherGrowth {
                ordinal: self.ordinal,
                open: self.growth.name(),
                asked: growth.name(),
            }
            .into());
        }
        let state = self.state.lock();
        if asked == Limit::Unlimited || asked == state.asked {
            return Ok(());
        }
        Err(MemoryError::AlreadyOpen {
            device: DeviceLocation::Cuda {
                gpu_id: self.ordinal,
            },
            open: state.limit,
            asked: asked.resolve(self.room(&state)?)?,
        }
        .into())
    }

    fn room(&self, state: &State) -> Result<Room> {
        let (free, total) = driver::free_and_total(&self.context).map_err(driver_error)?;
        let held = state.reserved().map_err(driver_error)?;
        Ok(room(free, total, held))
    }

    /// Puts a pool with another greatest size in the place of the present one.
    fn replace_pool(&self, state: &mut State, limit: Option<u64>) -> Result<()> {
        state.trim().map_err(driver_error)?;
        let held = state.reserved().map_err(driver_error)?;
        let left = match limit {
            Some(limit) if limit < held => {
                return Err(MemoryError::BelowUse {
                    limit,
                    in_use: held,
                }
                .into());
            }
            limit => limit.map(|limit| limit - held),
        };
        let pool = new_pool(&self.context, self.growth, left).map_err(driver_error)?;
        if let (Growth::Preallocate, Some(left)) = (self.growth, left) {
            let (free, _) = driver::free_and_total(&self.context).map_err(driver_error)?;
            fill(&pool, left, &self.context.default_stream(), free)?;
        }
        state.current.keep_at_sync(0).map_err(driver_error)?;
        pool.make_current().map_err(driver_error)?;
        let retired = std::mem::replace(&mut state.current, pool);
        state.retired.push(retired);
        state
            .retired
            .retain(|pool| !matches!(pool.reserved(), Ok(0)));
        Ok(())
    }
}

impl State {
    fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.retired.iter().chain([&self.current])
    }

    fn used(&self) -> Result<u64, DriverError> {
        self.pools().map(Pool::used).sum()
    }

    fn reserved(&self) -> Result<u64, DriverError> {
        self.pools().map(Pool::reserved).sum()
    }

    fn trim(&self) -> Result<(), DriverError> {
        self.pools().try_for_each(Pool::trim)
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
        // What was freed cannot leave the pool before its last use is over.
        settle(&self.device)?;
        // A retired pool's peak is not asked for again.
        self.scopes.lock().overall(self.take_peak());
        let mut state = self.state.lock();
        let limit = asked.resolve(self.room(&state)?)?;
        let in_use = state.used().map_err(driver_error)?;
        match limit {
            Some(limit) if limit < in_use => {
                return Err(MemoryError::BelowUse { limit, in_use }.into());
            }
            _ if limit == state.limit => {}
            _ if self.is_hard => self.replace_pool(&mut state, limit)?,
            _ => {}
        }
        state.asked = asked;
        state.limit = limit;
        let ours = state.current.handle();
        drop(state);
        registry::moved(self.ordinal, ours);
        Ok(())
    }

    fn in_use(&self) -> Option<u64> {
        self.state.lock().used().ok()
    }

    fn free(&self) -> Option<u64> {
        let (free, _) = driver::free_and_total(&self.context).ok()?;
        let state = self.state.lock();
        let unused = state.reserved().ok()?.saturating_sub(state.used().ok()?);
        Some(free.saturating_add(unused))
    }

    fn reading(&self) -> MemoryReading {
        let state = self.state.lock();
        MemoryReading {
            in_use: state.used().ok(),
            reserved: state.reserved().ok(),
            limit: state.limit,
            ..MemoryReading::default()
        }
    }

    fn stats(&self) -> MemoryStats {
        let peak = self.scopes.lock().overall(self.take_peak());
        let memory = driver::free_and_total(&self.context).ok();
        let state = self.state.lock();
        let reserved = state.reserved().ok();
        let retired: u64 = state.retired.iter().flat_map(Pool::reserved).sum();
        let in_use = state.used().ok();
        MemoryStats {
            in_use,
            peak: in_use.map(|_| peak),
            reserved,
            peak_reserved: state
                .current
                .reserved_high()
                .ok()
                .map(|high| high + retired),
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
        let state = self.state.lock();
        let retired: u64 = state.retired.iter().flat_map(Pool::used).sum();
        Some(state.current.take_used_high().ok()? + retired)
    }

    fn scopes(&self) -> &Mutex<Scopes> {
        &self.scopes
    }

    fn reset_peak(&self) {
        self.scopes.lock().reset(self.take_peak());
        // A lost device has no peak to begin anew, and says so wherever an error can be returned.
        let _ = self.state.lock().current.restart_reserved_high();
    }

    fn trim(&self) -> Result<()> {
        self.state.lock().trim().map_err(driver_error)
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
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let current = self.state.get_mut().current.handle();
        registry::alone(|| {
            // Somebody may have made another pool current since; that is theirs to keep.
            if driver::current_pool(&self.context).is_ok_and(|pool| pool == current) {
                restore(&self.context, self.before);
            }
        });
    }
}

/// The device's primary context, or why there is none.
fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    CudaContext::new(ordinal).map_err(|error| {
        let unknown = error.0 == CUresult::CUDA_ERROR_INVALID_DEVICE;
        match CudaContext::device_count() {
            Ok(count) if unknown => MemoryError::NoSuchDevice {
                ordinal,
                count: usize::try_from(count).unwrap_or(0),
            }
            .into(),
            _ => candle_core::Error::from(CudaError::from(error))
                .context(format!("CUDA device {ordinal} cannot be opened"))
                .into(),
        }
    })
}

fn room(free: u64, total: u64, held: u64) -> Room {
    Room {
        total: Some(total),
        usable: Some(free.saturating_add(held)),
        auto_fraction: DEVICE_AUTO_FRACTION,
    }
}

fn new_pool(
    context: &Arc<CudaContext>,
    growth: Growth,
    max_size: Option<u64>,
) -> Result<Pool, DriverError> {
    let pool = Pool::new(context, max_size.map(whole_steps))?;
    pool.keep_at_sync(match growth {
        Growth::OnDemand | Growth::Preallocate => u64::MAX,
        Growth::ReturnAtSync => 0,
    })?;
    Ok(pool)
}

fn fill(pool: &Pool, bytes: u64, stream: &Arc<CudaStream>, free: u64) -> Result<()> {
    pool.fill(whole_steps(bytes), stream).map_err(|error| {
        match error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            true => MemoryError::Preallocate { bytes, free }.into(),
            false => driver_error(error),
        }
    })
}

fn whole_steps(bytes: u64) -> u64 {
    bytes - bytes % STEP
}

/// Whether the driver refuses what goes over a pool's greatest size. Its documentation does not say whether it always does, and
/// older ones cannot.
fn keeps_max_size(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    free: u64,
) -> Result<bool, DriverError> {
    // On a device that is as full as that, a refusal would prove nothing.
    if driver::version()? < driver::FIRST_WITH_MAX_SIZE || free < 2 * TRIAL {
        return Ok(false);
    }
    let trial = Pool::new(context, Some(TRIAL))?;
    match trial.fill(2 * TRIAL, stream) {
        Ok(()) => Ok(false),
        Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(true),
        Err(error) => Err(error),
    }
}

fn restore(context: &CudaContext, pool: Handle) {
    // SAFETY: the pool was current before any of ours was; whoever made it so keeps it alive, as CUDA does its default pool.
    if let Err(error) = unsafe { driver::set_current_pool(context, pool) } {
        tracing::warn!(%error, "the device's former memory pool could not be made current again");
    }
}
