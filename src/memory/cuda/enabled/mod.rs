//! Opening a device: the order of the calls, and what is undone when one fails.

mod pool;
mod pools;
mod work;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use candle_core::Device;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{device, free_async, malloc_async};
use candle_core::cuda_backend::cudarc::driver::sys::cuDriverGetVersion;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, DriverError};
use parking_lot::Mutex;

use pool::{Pool, free_and_total};
use pools::{Pools, STEP, check};
use work::{classified, has_no_reserve};

use crate::environment::nvml;
use crate::error::{Error, MemoryReading, Neighbour, Result, invalid};
use crate::memory::device::{CurrentLimit, DeviceMemory, Shared};
use crate::memory::limit::{
    Backing, DEVICE_AUTO_FRACTION, Enforcement, Growth, Limit, MemoryStats, Room,
};

pub(crate) use pool::Handle;
pub(crate) use work::{Mark, PageLocked, drain, while_dropping};
pub(super) use work::{is_full, synchronize, trim};

/// The time limit for NVML to list processes, which usually takes a few hundredths of a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// A GPU's memory, while a handle lives.
#[derive(Debug)]
struct CudaMemory {
    context: Arc<CudaContext>,
    driver: Trial,
    pools: Mutex<Pools>,
}

/// The room of a device with `free` bytes free and `held` bytes in the pools.
fn room(free: u64, total: u64, held: u64) -> Room {
    Room {
        total: Some(total),
        usable: Some(free.saturating_add(held)),
        auto_fraction: DEVICE_AUTO_FRACTION,
    }
}

impl Trial {
    /// The greatest size of the pools for a limit; `None` if there is no limit, or if the driver does not enforce it.
    fn max_size(self, limit: Option<u64>, total: u64) -> Result<Option<u64>> {
        check(limit, 0, self.step)?;
        // Not every driver accepts a `maxSize` above the capacity.
        Ok(limit.filter(|_| self.is_hard).map(|limit| limit.min(total)))
    }
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
            enforcement: Some(match self.driver.is_hard {
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

    fn peak(&self, take: bool) -> Option<u64> {
        let mut pools = self.pools.lock();
        let high = pools.used_high();
        if take {
            // Fails only on a lost device, which every call that can return an error reports.
            let _ = pools.restart_used_high();
        }
        high.ok()
    }

    fn room(&self) -> Result<Room> {
        let (free, total) = free_and_total(&self.context).w()?;
        Ok(room(free, total, self.pools.lock().reserved().w()?))
    }

    fn set_limit(&self, bytes: Option<u64>) -> Result<()> {
        let (_, total) = free_and_total(&self.context).w()?;
        let max_size = self.driver.max_size(bytes, total)?;
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

/// The open memory of this process, by device.
static OPEN: Mutex<BTreeMap<usize, (Growth, Weak<Shared>)>> = Mutex::new(BTreeMap::new());

/// The first driver with `maxSize` for pools, as `cuDriverGetVersion` numbers it.
const FIRST_WITH_MAX_SIZE: i32 = 12020;

/// A pool of at least this size is asked for twice its size, to test whether the driver enforces `maxSize`.
const TRIAL: u64 = 32 << 20;

pub(crate) fn open(
    ordinal: usize,
    growth: Option<Growth>,
    limit: Limit,
    event_tracking: bool,
) -> Result<DeviceMemory> {
    let mut all = OPEN.lock();
    if let Some((open, shared)) = all.get(&ordinal)
        && let Some(shared) = shared.upgrade()
    {
        if let Some(asked) = growth.filter(|asked| asked != open) {
            return Err(invalid!(
                Memory,
                "the memory of CUDA device {ordinal} is open already with Growth::{open:?}, not {asked:?}: share its handles, or drop them first"
            ));
        }
        let memory = DeviceMemory { shared };
        if event_tracking && !memory.device().as_cuda_device()?.is_event_tracking() {
            return Err(invalid!(
                Memory,
                "the memory of CUDA device {ordinal} is open already without event tracking: ask for it where it is opened first, or drop its handles"
            ));
        }
        memory.agree(limit)?;
        return Ok(memory);
    }
    let growth = growth.unwrap_or_default();
    let memory = open_anew(ordinal, growth, limit, event_tracking)?;
    all.insert(ordinal, (growth, Arc::downgrade(&memory.shared)));
    Ok(memory)
}

pub(crate) fn opened(device: &Device) -> Option<DeviceMemory> {
    let all = OPEN.lock();
    let open = all.values().filter_map(|(_, shared)| shared.upgrade());
    let mut open = open.map(|shared| DeviceMemory { shared });
    open.find(|memory| memory.device().same_device(device))
}

fn open_anew(
    ordinal: usize,
    growth: Growth,
    asked: Limit,
    event_tracking: bool,
) -> Result<DeviceMemory> {
    let refused = |error| refused(ordinal, error);
    let count = CudaContext::device_count().map_err(refused)?;
    let count = usize::try_from(count).unwrap_or(0);
    if ordinal >= count {
        return Err(invalid!(
            Memory,
            "there is no CUDA device {ordinal}: the driver lists {count}, numbered from 0; CUDA_VISIBLE_DEVICES may hide others"
        ));
    }
    let context = CudaContext::new(ordinal).map_err(refused)?;
    if !context.has_async_alloc() {
        return Err(invalid!(
            Memory,
            "CUDA device {ordinal} does not support memory pools, so its memory can be neither limited nor counted: use `Device::new_cuda({ordinal})` without a `DeviceMemory`"
        ));
    }
    // The first call that needs the device itself.
    let (free, total) = free_and_total(&context).map_err(refused)?;
    let room = room(free, total, 0);
    let bytes = asked.resolve(|| Ok(room))?;
    let fill = match (growth, bytes) {
        (Growth::Preallocate, None) => Limit::Auto.resolve(|| Ok(room))?,
        (Growth::Preallocate, bytes) => bytes,
        _ => None,
    };
    let driver = Trial::of(&context, free);
    let max_size = driver.max_size(bytes, total)?;
    // Before candle's device, whose own allocations then come from the pool as well.
    let pools = Pools::open(&context, growth, driver.step, max_size, fill)?;
    let device = Device::new_cuda_with_stream(ordinal).map_err(|error| {
        let error = Error::from(error);
        match has_no_reserve(&context) {
            true => error.on_full_device(),
            false => error,
        }
    })?;
    let cuda = device.as_cuda_device()?;
    if !event_tracking && frees_without_context(&cuda.cuda_stream()).w()? {
        // SAFETY: candle queues all work on this device's tensors and all frees on its one stream, in order. What this crate does on others
        // waits by events of its own: a loader's copies (data/stage) before the tensors are used or freed, `Mark::read` after its mark has
        // passed. A program that uses tensors on further streams asks for tracking, as `CudaMemoryBuilder::event_tracking` says.
        unsafe { cuda.disable_event_tracking() };
    }
    let backing = CudaMemory {
        context,
        driver,
        pools: Mutex::new(pools),
    };
    let limit = CurrentLimit { asked, bytes };
    Ok(DeviceMemory::new(device, Box::new(backing), limit))
}

/// Why the driver does not let this program have the device: busy, in exclusive mode, or not visible. An exhaustion and a lost
/// device have types of their own.
fn refused(ordinal: usize, error: DriverError) -> Error {
    match classified(error) {
        answer @ Error::Candle(_) => {
            let remedy = answer.remedy().unwrap_or(
                "check whether `nvidia-smi` lists it and whether CUDA_VISIBLE_DEVICES hides it",
            );
            invalid!(
                Memory,
                "CUDA device {ordinal} cannot be opened, the driver returned {:?}: {remedy}",
                error.0
            )
        }
        known => known,
    }
}

/// Whether a thread that has never used the device can free memory on its stream, as tensors are freed that cudarc does not track. By CUDA's
/// documentation only a default stream needs a current context; nothing says so of every driver.
fn frees_without_context(stream: &CudaStream) -> Result<bool, DriverError> {
    let queue = Handle(stream.cu_stream());
    // SAFETY: the context is current since candle's device was created, and the stream is borrowed. The memory is never read.
    let address = unsafe { malloc_async(queue.0, 1) }?;
    // The braces have the closure borrow the handle, which threads may share, and not the pointer in it.
    // SAFETY: the address was allocated above and is not used after it is freed. The stream is borrowed.
    let free = || unsafe { free_async(address, { queue }.0) };
    let freed = thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, free);
        other.ok().and_then(|other| other.join().ok())
    });
    match freed {
        Some(Ok(())) => Ok(true),
        _ => free().map(|()| false),
    }
}

/// What small pools show of the driver: its documentation promises neither.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// What a pool reserves for a first byte, and then at a time.
    step: u64,
    /// Whether allocations over a pool's `maxSize` are refused.
    is_hard: bool,
}

impl Trial {
    /// Tries the driver on a device with `free` bytes free. What cannot be tried counts as not enforced.
    fn of(context: &Arc<CudaContext>, free: u64) -> Self {
        let mut found = Self {
            step: STEP,
            is_hard: false,
        };
        if let Err(error) = found.run(context, free) {
            tracing::warn!(%error, "the driver's memory pools could not be tried: a limit is soft");
            found.is_hard = false;
        }
        found
    }

    fn run(&mut self, context: &Arc<CudaContext>, free: u64) -> Result<(), DriverError> {
        let pool = Pool::new(context, None)?;
        pool.keep_at_sync(u64::MAX)?;
        if pool.fill(1)? {
            self.step = pool.reserved()?.max(STEP);
        }
        pool.trim()?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer of the type that the driver writes.
        unsafe { cuDriverGetVersion(&mut version) }.result()?;
        let size = self.step.max(TRIAL);
        // On a device with less free, a refusal would prove nothing.
        if version >= FIRST_WITH_MAX_SIZE && free >= 2 * size {
            let pool = Pool::new(context, Some(size))?;
            // Only if the first succeeds is the second refused because of `maxSize`.
            self.is_hard = pool.fill(size)? && !pool.fill(2 * size)?;
        }
        Ok(())
    }
}
