//! Opening a device: the order of the calls, and what is undone when one fails.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::driver;
use super::memory::{CudaMemory, room};
use super::pool::Pool;
use super::pools::{Pools, STEP};
use super::recovery::driver_error;
use crate::error::{Error, MemoryError, Result};
use crate::memory::cuda::growth::Growth;
use crate::memory::device::DeviceMemory;
use crate::memory::limit::Limit;

/// The open memory of this process, by device.
static OPEN: Mutex<BTreeMap<usize, Weak<CudaMemory>>> = Mutex::new(BTreeMap::new());

/// A pool of this size is asked for twice its size, to test whether the driver enforces `maxSize`.
const TRIAL: u64 = 32 << 20;

pub(in crate::memory::cuda) fn open(
    ordinal: usize,
    growth: Option<Growth>,
    limit: Limit,
) -> Result<DeviceMemory> {
    let mut open = OPEN.lock();
    let memory = match open.get(&ordinal).and_then(Weak::upgrade) {
        Some(memory) => {
            memory.agree(growth, limit)?;
            memory
        }
        None => {
            let memory = Arc::new(open_anew(ordinal, growth.unwrap_or_default(), limit)?);
            open.insert(ordinal, Arc::downgrade(&memory));
            memory
        }
    };
    Ok(DeviceMemory::new(memory.device.clone(), memory))
}

fn open_anew(ordinal: usize, growth: Growth, asked: Limit) -> Result<CudaMemory> {
    let context = context(ordinal)?;
    if !context.has_async_alloc() {
        return Err(MemoryError::NoPools { ordinal }.into());
    }
    // The first call that needs the device itself.
    let (free, total) =
        driver::free_and_total(&context).map_err(|error| refused(ordinal, error))?;
    let room = room(free, total, 0);
    let limit = asked.resolve(room)?;
    if let Some(limit) = limit.filter(|&limit| limit < STEP) {
        return Err(MemoryError::TooSmall { limit, least: STEP }.into());
    }
    let fill = match (growth, limit) {
        (Growth::Preallocate, None) => Limit::Auto.resolve(room)?,
        (Growth::Preallocate, limit) => limit,
        _ => None,
    };
    let is_hard = enforces_max_size(&context, free).map_err(driver_error)?;
    // Not every driver accepts a `maxSize` above the capacity.
    let max_size = limit.filter(|_| is_hard).map(|limit| limit.min(total));
    let pools = Pools::new(&context, growth, max_size, fill)?;
    // Before candle's device, whose own allocations then come from the pool as well.
    pools.make_current()?;
    match Device::new_cuda_with_stream(ordinal) {
        Ok(device) => Ok(CudaMemory::new(
            (context, device),
            (growth, is_hard),
            (asked, limit),
            pools,
        )),
        Err(error) => {
            pools.leave();
            Err(error.into())
        }
    }
}

/// The device's primary context.
fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    // cudarc truncates the number to 32 bits.
    let known =
        i32::try_from(ordinal).map_err(|_| DriverError(CUresult::CUDA_ERROR_INVALID_DEVICE));
    let opened = known.and_then(|_| CudaContext::new(ordinal));
    opened.map_err(|error| match (error.0, CudaContext::device_count()) {
        (CUresult::CUDA_ERROR_INVALID_DEVICE, Ok(count)) => MemoryError::NoSuchDevice {
            ordinal,
            count: usize::try_from(count).unwrap_or(0),
        }
        .into(),
        _ => refused(ordinal, error),
    })
}

/// Why the driver does not let this program have the device: busy, in exclusive mode, or not visible. An exhaustion and a lost device have types
/// of their own.
fn refused(ordinal: usize, error: DriverError) -> Error {
    match driver_error(error) {
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

/// Whether the driver refuses allocations over a pool's `maxSize`. Its documentation does not promise it, and older drivers cannot.
fn enforces_max_size(context: &Arc<CudaContext>, free: u64) -> Result<bool, DriverError> {
    // On a device with less free, a refusal would prove nothing.
    if driver::version()? < driver::FIRST_WITH_MAX_SIZE || free < 2 * TRIAL {
        return Ok(false);
    }
    let (trial, stream) = (Pool::new(context, Some(TRIAL))?, context.default_stream());
    // Only if the first succeeds is the second refused because of `maxSize`.
    Ok(can_take(&trial, TRIAL, &stream)? && !can_take(&trial, 2 * TRIAL, &stream)?)
}

fn can_take(pool: &Pool, bytes: u64, stream: &Arc<CudaStream>) -> Result<bool, DriverError> {
    match pool.fill(bytes, stream) {
        Ok(()) => Ok(true),
        Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(false),
        Err(error) => Err(error),
    }
}
