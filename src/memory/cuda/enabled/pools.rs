use std::sync::Arc;

use bytesize::ByteSize;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};

use super::pool::{Pool, free_and_total, leave, take};
use crate::error::{Result, invalid};
use crate::memory::limit::Growth;

/// The granularity at which GPUs map memory.
pub(super) const STEP: u64 = 2 << 20;

/// The current pool is replaced by a larger one once retired pools have returned the limit divided by this.
const WORTH_HANDING_ON: u64 = 64;

/// The pool that serves new tensors, and pools from before the limit changed, with the tensors that still live in them. Dropping it
/// makes the device's former pool current again.
#[derive(Debug)]
pub(super) struct Pools {
    growth: Growth,
    /// What a pool reserves at a time, which is more than a [`STEP`] with some drivers. They round `maxSize` up; whole steps stay within
    /// the limit.
    step: u64,
    /// The number of bytes that all pools together may reserve, if the driver enforces it.
    pub(super) limit: Option<u64>,
    current: Pool,
    retired: Vec<Pool>,
    /// Bytes that the retired pools held when the current one was created with the rest of the limit.
    held: u64,
    /// The highest reservation and the highest use before the current pool.
    reserved_high: u64,
    used_high: u64,
}

impl Pools {
    /// One pool, which may grow to `limit` bytes and has reserved `fill` bytes.
    pub(super) fn open(
        context: &Arc<CudaContext>,
        growth: Growth,
        step: u64,
        limit: Option<u64>,
        fill: Option<u64>,
    ) -> Result<Self> {
        Ok(Self {
            growth,
            step,
            limit,
            current: take_over(context, growth, step, limit, fill)?,
            retired: Vec::new(),
            held: 0,
            reserved_high: 0,
            used_high: 0,
        })
    }

    /// Replaces the current pool, so that all pools together may grow to `limit` bytes. If that fails, a preallocated pool takes again
    /// what it had.
    pub(super) fn replace(&mut self, limit: Option<u64>) -> Result<()> {
        let before = self.current.reserved().w()?;
        let highest = (self.reserved_high().w()?, self.used_high().w()?);
        let replaced = self.try_replace(limit);
        if replaced.is_ok() {
            (self.reserved_high, self.used_high) = highest;
        } else if self.growth == Growth::Preallocate {
            let left = self.current.reserved().unwrap_or(before);
            // Another process may have been quicker; the first error is the one to return.
            let _ = self.current.fill(before.saturating_sub(left));
        }
        replaced
    }

    fn try_replace(&mut self, limit: Option<u64>) -> Result<()> {
        self.trim().w()?;
        let held = self.reserved().w()?;
        check(limit, held, self.step)?;
        let left = limit.map(|limit| limit - held);
        let fill = left.filter(|_| self.growth == Growth::Preallocate);
        let pool = take_over(&self.current.context, self.growth, self.step, left, fill)?;
        let retired = std::mem::replace(&mut self.current, pool);
        // It does not serve new tensors. On failure it only keeps freed memory for longer.
        let _ = retired.keep_at_sync(0);
        self.retired.push(retired);
        self.retired.retain(|pool| pool.reserved() != Ok(0));
        (self.limit, self.held) = (limit, held);
        Ok(())
    }

    /// Gives memory that retired pools have returned to a new, larger pool: the maximum of the current one is fixed.
    pub(super) fn hand_on(&mut self) -> Result<()> {
        let (Some(limit), false) = (self.limit, self.retired.is_empty()) else {
            return Ok(());
        };
        let returned = self.held.saturating_sub(self.retired_reserved().w()?);
        match returned >= (limit / WORTH_HANDING_ON).max(self.step) {
            true => self.replace(Some(limit)),
            false => Ok(()),
        }
    }

    pub(super) fn used(&self) -> Result<u64, DriverError> {
        self.all().map(Pool::used).sum()
    }

    pub(super) fn reserved(&self) -> Result<u64, DriverError> {
        self.all().map(Pool::reserved).sum()
    }

    /// The highest reservation since its last reset. Retired pools only shrink.
    pub(super) fn reserved_high(&self) -> Result<u64, DriverError> {
        let now = self.current.reserved_high()? + self.retired_reserved()?;
        Ok(now.max(self.reserved_high))
    }

    fn retired_reserved(&self) -> Result<u64, DriverError> {
        self.retired.iter().map(Pool::reserved).sum()
    }

    pub(super) fn restart_reserved_high(&mut self) -> Result<(), DriverError> {
        self.reserved_high = 0;
        self.current.restart_reserved_high()
    }

    /// The highest use since its last restart.
    pub(super) fn used_high(&self) -> Result<u64, DriverError> {
        let retired: u64 = self.retired.iter().map(Pool::used).sum::<Result<_, _>>()?;
        let now = self.current.used_high()? + retired;
        Ok(now.max(self.used_high))
    }

    pub(super) fn restart_used_high(&mut self) -> Result<(), DriverError> {
        self.used_high = 0;
        self.current.restart_used_high()
    }

    /// Returns all unused memory to the device.
    pub(super) fn trim(&self) -> Result<(), DriverError> {
        self.all().try_for_each(Pool::trim)
    }

    fn all(&self) -> impl Iterator<Item = &Pool> {
        self.retired.iter().chain([&self.current])
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        leave(&self.current);
    }
}

/// A new pool, which from now on serves every allocation of the process on this device.
fn take_over(
    context: &Arc<CudaContext>,
    growth: Growth,
    step: u64,
    max_size: Option<u64>,
    fill: Option<u64>,
) -> Result<Pool> {
    let whole_steps = |bytes: u64| bytes - bytes % step;
    let pool = Pool::new(context, max_size.map(whole_steps)).w()?;
    let kept = match growth {
        Growth::OnDemand | Growth::Preallocate => u64::MAX,
        Growth::ReturnAtSync => 0,
    };
    pool.keep_at_sync(kept).w()?;
    let bytes = fill.unwrap_or(0);
    if !pool.fill(whole_steps(bytes)).w()? {
        let (free, _) = free_and_total(context).w()?;
        let [bytes, free] = [bytes, free].map(ByteSize);
        return Err(invalid!(
            Memory,
            "{bytes} cannot be taken at once, {free} are free on the device: lower the limit, or use `Growth::OnDemand`"
        ));
    }
    take(&pool, growth == Growth::Preallocate).w()?;
    Ok(pool)
}

/// Checks that a limit leaves the pool room beside the `held` bytes, which it cannot give back.
pub(super) fn check(limit: Option<u64>, held: u64, step: u64) -> Result<()> {
    let least = held + step;
    let Some(limit) = limit.filter(|&limit| limit < least) else {
        return Ok(());
    };
    let [limit, least, step] = [limit, least, step].map(ByteSize);
    Err(invalid!(
        Memory,
        "a limit of {limit} is too small: it must be at least {least}, for what the pool cannot give back and the {step} that it takes at once"
    ))
}
