//! Opening a device: the order of the calls, and what is undone when one fails.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use candle_core::Device;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::cuDriverGetVersion;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};
use parking_lot::Mutex;

use super::memory::{CudaMemory, max_size, room};
use super::pool::{Pool, free_and_total};
use super::pools::Pools;
use super::work::classified;
use crate::error::{Error, MemoryError, Result};
use crate::memory::device::{CurrentLimit, DeviceMemory, Shared};
use crate::memory::limit::{Growth, Limit};

/// The open memory of this process, by device.
static OPEN: Mutex<BTreeMap<usize, (Growth, Weak<Shared>)>> = Mutex::new(BTreeMap::new());

/// The first driver with `maxSize` for pools, as `cuDriverGetVersion` numbers it.
const FIRST_WITH_MAX_SIZE: i32 = 12020;

/// A pool of this size is asked for twice its size, to test whether the driver enforces `maxSize`.
const TRIAL: u64 = 32 << 20;

pub(crate) fn open(ordinal: usize, growth: Option<Growth>, limit: Limit) -> Result<DeviceMemory> {
    let mut all = OPEN.lock();
    if let Some((open, shared)) = all.get(&ordinal)
        && let Some(shared) = shared.upgrade()
    {
        if let Some(asked) = growth.filter(|asked| asked != open) {
            return Err(MemoryError::OtherGrowth {
                ordinal,
                open: format!("{open:?}"),
                asked: format!("{asked:?}"),
            }
            .into());
        }
        let memory = DeviceMemory { shared };
        memory.agree(limit)?;
        return Ok(memory);
    }
    let growth = growth.unwrap_or_default();
    let memory = open_anew(ordinal, growth, limit)?;
    all.insert(ordinal, (growth, Arc::downgrade(&memory.shared)));
    Ok(memory)
}

fn open_anew(ordinal: usize, growth: Growth, asked: Limit) -> Result<DeviceMemory> {
    let refused = |error| refused(ordinal, error);
    let count = CudaContext::device_count().map_err(refused)?;
    let count = usize::try_from(count).unwrap_or(0);
    if ordinal >= count {
        return Err(MemoryError::NoSuchDevice { ordinal, count }.into());
    }
    let context = CudaContext::new(ordinal).map_err(refused)?;
    if !context.has_async_alloc() {
        return Err(MemoryError::NoPools(ordinal).into());
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
    let is_hard = enforces_max_size(&context, free).w()?;
    let max_size = max_size(bytes, is_hard, total)?;
    // Before candle's device, whose own allocations then come from the pool as well.
    let pools = Pools::open(&context, growth, max_size, fill)?;
    let device = Device::new_cuda_with_stream(ordinal)?;
    let backing = CudaMemory {
        context,
        is_hard,
        pools: Mutex::new(pools),
    };
    let limit = CurrentLimit { asked, bytes };
    Ok(DeviceMemory::new(device, Box::new(backing), limit))
}

/// Why the driver does not let this program have the device: busy, in exclusive mode, or not visible. An exhaustion and a lost
/// device have types of their own.
fn refused(ordinal: usize, error: DriverError) -> Error {
    match classified(error) {
        answer @ Error::Candle(_) => MemoryError::Unavailable {
            ordinal,
            status: format!("{:?}", error.0),
            remedy: answer.remedy().unwrap_or(
                "check whether `nvidia-smi` lists it and whether CUDA_VISIBLE_DEVICES hides it",
            ),
        }
        .into(),
        known => known,
    }
}

/// Whether the driver refuses allocations over a pool's `maxSize`: its documentation does not promise it, and older drivers cannot.
fn enforces_max_size(context: &Arc<CudaContext>, free: u64) -> Result<bool, DriverError> {
    let mut version = 0;
    // SAFETY: the pointer is to a live integer of the type that the driver writes.
    unsafe { cuDriverGetVersion(&mut version) }.result()?;
    // On a device with less free, a refusal would prove nothing.
    if version < FIRST_WITH_MAX_SIZE || free < 2 * TRIAL {
        return Ok(false);
    }
    let trial = Pool::new(context, Some(TRIAL))?;
    // Only if the first succeeds is the second refused because of `maxSize`.
    Ok(trial.fill(TRIAL)? && !trial.fill(2 * TRIAL)?)
}
