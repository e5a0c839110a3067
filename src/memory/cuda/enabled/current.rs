//! The current pool of each device, from which the driver serves allocations: one of this crate's while its memory is open, then the
//! former one again.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use parking_lot::Mutex;

use super::driver::{self, Attribute, Handle};
use super::pool::Pool;

const RESERVED: Attribute = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;

static CURRENT: Mutex<BTreeMap<usize, CurrentPool>> = Mutex::new(BTreeMap::new());

struct CurrentPool {
    /// The pool that was current before; its creator keeps it alive, as CUDA keeps its default pool.
    before: Handle,
    ours: Handle,
    /// Whether our pool has been preallocated and must keep its memory.
    is_filled: bool,
}

/// Makes a pool serve every later allocation of the process on this device.
pub(super) fn take(context: &CudaContext, pool: &Pool, is_filled: bool) -> Result<(), DriverError> {
    let mut pools = CURRENT.lock();
    let current = driver::current_pool(context)?;
    pool.make_current()?;
    // If another pool of ours is current, it is about to go: the pool before it is the one to restore.
    let before = match pools.get(&context.ordinal()) {
        Some(entry) if entry.ours == current => entry.before,
        _ => current,
    };
    let entry = CurrentPool {
        before,
        ours: pool.handle,
        is_filled,
    };
    pools.insert(context.ordinal(), entry);
    Ok(())
}

/// Returns the current pool's unused memory to the device, where free pieces are merged. A preallocated pool takes it again, unless another
/// process was quicker.
pub(super) fn trim(context: &Arc<CudaContext>) -> Result<(), DriverError> {
    // While the lock is held no pool of ours stops being current, and so none is destroyed.
    let pools = CURRENT.lock();
    let current = driver::current_pool(context)?;
    let entry = pools.get(&context.ordinal());
    let refill = entry.is_some_and(|entry| entry.ours == current && entry.is_filled);
    // SAFETY: a device's current pool exists: ours stop being current before they are destroyed, and other creators keep theirs alive. The
    // attribute is a `cuuint64_t`.
    unsafe {
        let before = driver::attribute(current, RESERVED)?;
        driver::trim_pool(current, 0)?;
        if refill {
            let taken = before.saturating_sub(driver::attribute(current, RESERVED)?);
            let bytes = usize::try_from(taken).unwrap_or(usize::MAX);
            if bytes > 0 {
                let _ = driver::take_and_free(current, bytes, &context.default_stream());
            }
        }
    }
    Ok(())
}

/// Makes the former pool current again, unless a pool that is not ours has become current since.
pub(super) fn leave(context: &CudaContext, pool: &Pool) {
    let mut pools = CURRENT.lock();
    let Some(entry) = pools.remove(&context.ordinal()) else {
        return;
    };
    if entry.ours != pool.handle {
        pools.insert(context.ordinal(), entry);
        return;
    }
    let left = driver::current_pool(context).and_then(|current| match current == entry.ours {
        // SAFETY: the pool was current on this device before ours, and its creator keeps it alive.
        true => unsafe { driver::set_current_pool(context, entry.before) },
        false => Ok(()),
    });
    if let Err(error) = left {
        tracing::warn!(%error, "the device's former memory pool could not be made current again");
    }
}
