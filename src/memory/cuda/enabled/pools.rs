use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;

use super::current;
use super::driver;
use super::pool::Pool;
use super::recovery::driver_error;
use crate::error::{MemoryError, Result};
use crate::memory::Growth;

/// The granularity at which GPUs map memory. Drivers round `maxSize` up; whole steps stay within the limit.
pub(super) const STEP: u64 = 2 << 20;

/// The current pool is replaced by a larger one once retired pools have returned the limit divided by this.
const WORTH_HANDING_ON: u64 = 64;

/// The pool that serves new tensors, and pools from before the limit changed, with the tensors that still live in them.
#[derive(Debug)]
pub(super) struct Pools {
    context: Arc<CudaContext>,
    growth: Growth,
    /// What all pools together may reserve, if the driver enforces it.
    limit: Option<u64>,
    current: Pool,
    retired: Vec<Pool>,
    /// Bytes that the retired pools held when the current one was created with the rest of the limit.
    held: u64,
    /// The highest reservation before the current pool.
    reserved_high: u64,
}

impl Pools {
    /// One pool, which may grow to `limit` bytes and has reserved `fill` bytes. It is not current yet.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        growth: Growth,
        limit: Option<u64>,
        fill: Option<u64>,
    ) -> Result<Self> {
        Ok(Self {
            context: Arc::clone(context),
            growth,
            limit,
            current: pool(context, growth, limit, fill)?,
            retired: Vec::new(),
            held: 0,
            reserved_high: 0,
        })
    }

    /// Makes the pool serve every later allocation of the process on this device.
    pub(super) fn make_current(&self) -> Result<()> {
        current::take(&self.context, &self.current, self.is_filled()).map_err(driver_error)
    }

    pub(super) fn leave(&self) {
        current::leave(&self.context, &self.current);
    }

    fn is_filled(&self) -> bool {
        self.growth == Growth::Preallocate
    }

    /// Replaces the current pool, so that all pools together may grow to `limit` bytes. If that fails, a preallocated pool takes again what it
    /// had.
    pub(super) fn replace(&mut self, limit: Option<u64>) -> Result<()> {
        let before = self.current.reserved().map_err(driver_error)?;
        let high = self.reserved_high().map_err(driver_error)?;
        let replaced = self.try_replace(limit);
        match &replaced {
            Ok(()) => self.reserved_high = high,
            Err(_) if self.is_filled() => {
                let left = self.current.reserved().unwrap_or(before);
                let bytes = before.saturating_sub(left);
                // Another process may have been quicker; the first error is the one to return.
                let _ = self.current.fill(bytes, &self.context.default_stream());
            }
            Err(_) => {}
        }
        replaced
    }

    fn try_replace(&mut self, limit: Option<u64>) -> Result<()> {
        self.trim().map_err(driver_error)?;
        let held = self.reserved().map_err(driver_error)?;
        if let Some(limit) = limit.filter(|&limit| limit < held + STEP) {
            return Err(MemoryError::TooSmall {
                limit,
                least: held + STEP,
            }
            .into());
        }
        let left = limit.map(|limit| limit - held);
        let fill = left.filter(|_| self.is_filled());
        let pool = pool(&self.context, self.growth, left, fill)?;
        current::take(&self.context, &pool, self.is_filled()).map_err(driver_error)?;
        let retired = std::mem::replace(&mut self.current, pool);
        // It does not serve new tensors. On failure it only keeps freed memory for longer.
        let _ = retired.keep_at_sync(0);
        self.retired.push(retired);
        self.retired
            .retain(|pool| !matches!(pool.reserved(), Ok(0)));
        (self.limit, self.held) = (limit, held);
        Ok(())
    }

    /// Gives what retired pools have returned to a new, larger pool: they do not use it any more, and the current pool may not.
    pub(super) fn hand_on(&mut self) -> Result<()> {
        let (Some(limit), false) = (self.limit, self.retired.is_empty()) else {
            return Ok(());
        };
        let held: u64 = sum(&self.retired, Pool::reserved).map_err(driver_error)?;
        let worth = (limit / WORTH_HANDING_ON).max(STEP);
        match self.held.saturating_sub(held) >= worth {
            true => self.replace(Some(limit)),
            false => Ok(()),
        }
    }

    /// Bytes that tensors hold.
    pub(super) fn used(&self) -> Result<u64, DriverError> {
        sum(self.all(), Pool::used)
    }

    /// Bytes taken from the device.
    pub(super) fn reserved(&self) -> Result<u64, DriverError> {
        sum(self.all(), Pool::reserved)
    }

    /// The highest reservation since its last reset. Retired pools only shrink.
    pub(super) fn reserved_high(&self) -> Result<u64, DriverError> {
        let now = self.current.reserved_high()? + sum(&self.retired, Pool::reserved)?;
        Ok(now.max(self.reserved_high))
    }

    pub(super) fn restart_reserved_high(&mut self) -> Result<(), DriverError> {
        self.reserved_high = 0;
        self.current.restart_reserved_high()
    }

    /// The highest use since it was last taken.
    pub(super) fn take_used_high(&self) -> Result<u64, DriverError> {
        Ok(self.current.take_used_high()? + sum(&self.retired, Pool::used)?)
    }

    /// Returns all unused memory to the device.
    pub(super) fn trim(&self) -> Result<(), DriverError> {
        self.all().try_for_each(Pool::trim)
    }

    fn all(&self) -> impl Iterator<Item = &Pool> {
        self.retired.iter().chain([&self.current])
    }
}

fn sum<'a>(
    pools: impl IntoIterator<Item = &'a Pool>,
    bytes: fn(&Pool) -> Result<u64, DriverError>,
) -> Result<u64, DriverError> {
    pools.into_iter().map(bytes).sum()
}

fn pool(
    context: &Arc<CudaContext>,
    growth: Growth,
    max_size: Option<u64>,
    fill: Option<u64>,
) -> Result<Pool> {
    let pool = Pool::new(context, max_size.map(whole_steps)).map_err(driver_error)?;
    let kept = match growth {
        Growth::OnDemand | Growth::Preallocate => u64::MAX,
        Growth::ReturnAtSync => 0,
    };
    pool.keep_at_sync(kept).map_err(driver_error)?;
    if let Some(bytes) = fill {
        let stream = context.default_stream();
        pool.fill(whole_steps(bytes), &stream).map_err(|error| {
            match driver::free_and_total(context) {
                Ok((free, _)) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    MemoryError::Preallocate { bytes, free }.into()
                }
                _ => driver_error(error),
            }
        })?;
    }
    Ok(pool)
}

fn whole_steps(bytes: u64) -> u64 {
    bytes - bytes % STEP
}
