use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};

use super::driver::{self, Attribute, Handle};

/// A stream-ordered memory pool; destroyed when dropped, while allocations from it live on.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) handle: Handle,
    /// Keeps the primary context, and with it the pool's device, open.
    context: Arc<CudaContext>,
}

impl Pool {
    /// An empty pool that may reserve `max_size` bytes, rounded by the driver; `None` for no maximum.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        max_size: Option<u64>,
    ) -> Result<Self, DriverError> {
        // 0 would mean no maximum.
        let max_size = max_size.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX).max(1));
        Ok(Self {
            handle: driver::create_pool(context, max_size)?,
            context: Arc::clone(context),
        })
    }

    /// Bytes that tensors hold.
    pub(super) fn used(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Bytes taken from the device.
    pub(super) fn reserved(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    pub(super) fn reserved_high(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
    }

    pub(super) fn restart_reserved_high(&self) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)
    }

    /// The highest use since it was last taken.
    pub(super) fn take_used_high(&self) -> Result<u64, DriverError> {
        let high = self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
        // Whether a reset peak starts at the present use or at 0 is not documented.
        Ok(high.max(self.used()?))
    }

    /// Sets how many reserved bytes a synchronization leaves in the pool.
    pub(super) fn keep_at_sync(&self, bytes: u64) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    /// Returns all unused memory to the device.
    pub(super) fn trim(&self) -> Result<(), DriverError> {
        // SAFETY: the pool exists as long as `self` does.
        unsafe { driver::trim_pool(self.handle, 0) }
    }

    /// Makes the pool reserve this many bytes, and waits until every stream can use them.
    pub(super) fn fill(&self, bytes: u64, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the pool exists as long as `self` does; both belong to the device of its context.
        unsafe { driver::take_and_free(self.handle, bytes, stream) }?;
        stream.synchronize()
    }

    /// Serves every later allocation of the process on this device.
    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the pool exists as long as `self` does, on the device of its context.
        unsafe { driver::set_current_pool(&self.context, self.handle) }
    }

    fn get(&self, attribute: Attribute) -> Result<u64, DriverError> {
        // SAFETY: the pool exists as long as `self` does, and every attribute used in this file is a `cuuint64_t`.
        unsafe { driver::attribute(self.handle, attribute) }
    }

    fn set(&self, attribute: Attribute, value: u64) -> Result<(), DriverError> {
        // SAFETY: as for `get`.
        unsafe { driver::set_attribute(self.handle, attribute, value) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `self` owns the pool, and its handle is not used any more.
        if let Err(error) = unsafe { driver::destroy_pool(self.handle) } {
            tracing::warn!(%error, "a memory pool could not be destroyed");
        }
    }
}
