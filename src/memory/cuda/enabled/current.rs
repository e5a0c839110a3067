//! The current pool of each device, from which the driver serves allocations: one of this crate's while its memory is open, then the
//! former one again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};
use parking_lot::Mutex;

use super::pool::Pool;

static CURRENT: Mutex<BTreeMap<usize, CurrentPool>> = Mutex::new(BTreeMap::new());

struct CurrentPool {
    /// The pool that was current before.
    before: Pool,
    /// The [`id`](Pool::id) of our pool.
    ours: usize,
    /// Whether our pool has been preallocated and must keep its memory.
    is_filled: bool,
}

/// Makes a pool of ours serve every later allocation of the process on its device.
pub(super) fn take(pool: &Pool, is_filled: bool) -> Result<(), DriverError> {
    let mut pools = CURRENT.lock();
    let before = Pool::current(&pool.context)?;
    pool.make_current()?;
    let ordinal = pool.context.ordinal();
    // If another pool of ours was current, it is about to go: the pool before it is the one to restore.
    let before = match pools.remove(&ordinal) {
        Some(entry) if entry.ours == before.id() => entry.before,
        _ => before,
    };
    let entry = CurrentPool {
        before,
        ours: pool.id(),
        is_filled,
    };
    pools.insert(ordinal, entry);
    Ok(())
}

/// Returns the current pool's unused memory to the device. A preallocated pool takes it again, unless another process was quicker.
pub(super) fn trim(context: &Arc<CudaContext>) -> Result<(), DriverError> {
    // While the lock is held no pool of ours stops being current, and so none is destroyed.
    let pools = CURRENT.lock();
    let current = Pool::current(context)?;
    let before = current.reserved()?;
    current.trim()?;
    let entry = pools.get(&context.ordinal());
    if entry.is_some_and(|entry| entry.is_filled && entry.ours == current.id()) {
        let _ = current.fill(before.saturating_sub(current.reserved()?));
    }
    Ok(())
}

/// Makes the former pool current again, unless a pool that is not ours has become current since.
pub(super) fn leave(pool: &Pool) {
    let mut pools = CURRENT.lock();
    if let Entry::Occupied(entry) = pools.entry(pool.context.ordinal())
        && entry.get().ours == pool.id()
    {
        let before = entry.remove().before;
        let left = Pool::current(&pool.context).and_then(|current| match current.id() {
            id if id == pool.id() => before.make_current(),
            _ => Ok(()),
        });
        if let Err(error) = left {
            tracing::warn!(%error, "the device's former memory pool could not be made current again");
        }
    }
}
