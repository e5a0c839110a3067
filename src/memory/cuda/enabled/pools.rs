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

/// The step in which GPUs map memory. A driver rounds a pool's greatest size up; in whole steps it stays within the limit.
pub(super) const STEP: u64 = 2 << 20;

/// Of the limit: retired pools must have given back this much before the current pool is replaced by a larger one.
const WORTH_HANDING_ON: u64 = 64;

/// The pool that serves new tensors, and those from before the limit was changed, with the tensors that have lived since.
#[derive(Debug)]
pub(super) struct Pools {
    context: Arc<CudaContext>,
    growth: Growth,
    /// What all of them together may reserve, where the driver sees to that.
    limit: Option<u64>,
    current: Pool,
    retired: Vec<Pool>,
    /// What the retired ones held when the current one was made: it may grow to what that left of the limit.
    held: u64,
    /// The highest reservation under former current pools.
    reserved_high: u64,
}

impl Pools {
    /// One pool, which may grow to `limit` bytes and has taken `fill` bytes already. It does not serve anybody yet.
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

    /// Lets the current pool serve every later allocation of the process on this device.
    pub(super) fn make_current(&self) -> Result<()> {
        current::take(&self.context, &self.current, self.is_filled()).map_err(driver_error)
    }

    pub(super) fn leave(&self) {
        current::leave(&self.context, &self.current);
    }

    fn is_filled(&self) -> bool {
        self.growth == Growth::Preallocate
    }

    /// Puts a pool in the current one's place, so that all of them together may grow to `limit` bytes. What a preallocated pool
    /// had taken is taken again where that fails.
    pub(super) fn replace(&mut self, limit: Option<u64>) -> Result<()> {
        let before = self.current.reserved().map_err(driver_error)?;
        let high = self.reserved_high().map_err(driver_error)?;
        let replaced = self.try_replace(limit);
        match &replaced {
            Ok(()) => self.reserved_high = high,
            Err(_) if self.is_filled() => {
                let left = self.current.reserved().unwrap_or(before);
                let bytes = before.saturating_sub(left);
                // Somebody else may have been quicker; the error that is returned is the one that matters.
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
        // What its tensors let go of is of no use to it any more. If this fails, it only keeps that for longer.
        let _ = retired.keep_at_sync(0);
        self.retired.push(retired);
        self.retired
            .retain(|pool| !matches!(pool.reserved(), Ok(0)));
        (self.limit, self.held) = (limit, held);
        Ok(())
    }

    /// Lets a new pool have what retired ones have given back since: they will not use it any more, and the current one may not.
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

    /// The highest reservation since it was last begun anew. Retired pools only shrink.
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

    /// Gives all that nobody uses back to the device.
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
