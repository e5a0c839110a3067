//! Which pool serves a device: one of ours takes the seat, and gives it back in the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use parking_lot::Mutex;

use super::driver::{self, Attribute, Handle};
use super::pool::Pool;

static CURRENT: Mutex<BTreeMap<usize, CurrentPool>> = Mutex::new(BTreeMap::new());

struct CurrentPool {
    /// The pool that served before any of ours did; whoever made it keeps it alive, as CUDA does its default pool.
    before: Handle,
    ours: Handle,
    /// Ours has taken all that it may, and is to keep it.
    is_filled: bool,
}

/// Lets a pool serve every later allocation of the process on this device.
pub(super) fn take(context: &CudaContext, pool: &Pool, is_filled: bool) -> Result<(), DriverError> {
    let mut pools = CURRENT.lock();
    let current = driver::current_pool(context)?;
    pool.make_current()?;
    // A pool of ours that has not given the seat back yet is about to go: what was before it was before us, too.
    let before = match pools.get(&context.ordinal()) {
        Some(entry) if entry.ours == current => entry.before,
        _ => current,
    };
    let entry = CurrentPool {
        before,
        ours: pool.handle(),
        is_filled,
    };
    pools.insert(context.ordinal(), entry);
    Ok(())
}

/// Gives what the pool that serves the device holds and nobody uses back to the device, where free pieces become one. A pool that
/// is to keep what it has taken takes it again, as far as nobody was quicker.
pub(super) fn trim(context: &Arc<CudaContext>) -> Result<(), DriverError> {
    // While the seats are held no pool of ours leaves its own, and so none is destroyed.
    let pools = CURRENT.lock();
    let current = driver::current_pool(context)?;
    let entry = pools.get(&context.ordinal());
    let refill = entry.is_some_and(|entry| entry.ours == current && entry.is_filled);
    // SAFETY: a device's current pool exists: one of ours leaves its seat before it is destroyed, and the others' owners keep theirs.
    unsafe {
        let before = driver::attribute(current, Attribute::Reserved)?;
        driver::trim_pool(current, 0)?;
        if refill {
            let taken = before.saturating_sub(driver::attribute(current, Attribute::Reserved)?);
            let bytes = usize::try_from(taken).unwrap_or(usize::MAX);
            if bytes > 0 {
                let _ = driver::take_and_free(current, bytes, &context.default_stream());
            }
        }
    }
    Ok(())
}

/// Gives the seat back to the pool that served before, unless somebody else has taken it since: then it is theirs.
pub(super) fn leave(context: &CudaContext, pool: &Pool) {
    let mut pools = CURRENT.lock();
    let Some(entry) = pools.remove(&context.ordinal()) else {
        return;
    };
    if entry.ours != pool.handle() {
        pools.insert(context.ordinal(), entry);
        return;
    }
    let left = driver::current_pool(context).and_then(|current| match current == entry.ours {
        // SAFETY: the pool served this device before ours did, and is kept alive by whoever made it.
        true => unsafe { driver::set_current_pool(context, entry.before) },
        false => Ok(()),
    });
    if let Err(error) = left {
        tracing::warn!(%error, "the device's former memory pool could not be made current again");
    }
}
