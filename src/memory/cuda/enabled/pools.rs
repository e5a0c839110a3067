use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;

use super::driver;
use super::pool::Pool;
use super::recovery::driver_error;
use super::seat;
use crate::error::{MemoryError, Result};
use crate::memory::Growth;

/// The step in which GPUs map memory. A driver rounds a pool's greatest size up; in whole steps it stays within the limit.
const STEP: u64 = 2 << 20;

/// The pool that serves new tensors, and those from before the limit was changed, with the tensors that have lived since.
#[derive(Debug)]
pub(super) struct Pools {
    context: Arc<CudaContext>,
    growth: Growth,
    current: Pool,
    retired: Vec<Pool>,
}

impl Pools {
    /// One pool, which may grow to `max_size` bytes and has taken `fill` bytes already. It does not serve anybody yet.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        growth: Growth,
        max_size: Option<u64>,
        fill: Option<u64>,
    ) -> Result<Self> {
        Ok(Self {
            context: Arc::clone(context),
            growth,
            current: pool(context, growth, max_size, fill)?,
            retired: Vec::new(),
        })
    }

    /// Lets the current pool serve every later allocation of the process on this device.
    pub(super) fn take_seat(&self) -> Result<()> {
        seat::take(&self.context, &self.current).map_err(driver_error)
    }

    pub(super) fn leave_seat(&self) {
        seat::leave(&self.context, &self.current);
    }

    /// Puts a pool in the current one's place, so that all of them together may grow to `limit` bytes.
    pub(super) fn replace(&mut self, limit: Option<u64>) -> Result<()> {
        self.trim().map_err(driver_error)?;
        let held = self.reserved().map_err(driver_error)?;
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
        let fill = left.filter(|_| self.growth == Growth::Preallocate);
        let pool = pool(&self.context, self.growth, left, fill)?;
        seat::take(&self.context, &pool).map_err(driver_error)?;
        let retired = std::mem::replace(&mut self.current, pool);
        // What its tensors let go of is of no use to it any more. If this fails, it only keeps that for longer.
        let _ = retired.keep_at_sync(0);
        self.retired.push(retired);
        self.retired
            .retain(|pool| !matches!(pool.reserved(), Ok(0)));
        Ok(())
    }

    /// Bytes that tensors hold.
    pub(super) fn used(&self) -> Result<u64, DriverError> {
        self.all().map(Pool::used).sum()
    }

    /// Bytes taken from the device.
    pub(super) fn reserved(&self) -> Result<u64, DriverError> {
        self.all().map(Pool::reserved).sum()
    }

    /// The highest reservation since it was last begun anew; retired pools only shrink.
    pub(super) fn reserved_high(&self) -> Result<u64, DriverError> {
        let retired: u64 = self
            .retired
            .iter()
            .map(Pool::reserved)
            .sum::<Result<_, _>>()?;
        Ok(self.current.reserved_high()? + retired)
    }

    pub(super) fn restart_reserved_high(&self) -> Result<(), DriverError> {
        self.current.restart_reserved_high()
    }

    /// The highest use since it was last taken.
    pub(super) fn take_used_high(&self) -> Result<u64, DriverError> {
        let retired: u64 = self.retired.iter().map(Pool::used).sum::<Result<_, _>>()?;
        Ok(self.current.take_used_high()? + retired)
    }

    /// Gives all that nobody uses back to the device.
    pub(super) fn trim(&self) -> Result<(), DriverError> {
        self.all().try_for_each(Pool::trim)
    }

    fn all(&self) -> impl Iterator<Item = &Pool> {
        self.retired.iter().chain([&self.current])
    }
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
