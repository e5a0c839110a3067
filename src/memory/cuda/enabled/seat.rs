//! Which pool serves a device: one of ours takes the seat, and gives it back in the end.

use std::collections::BTreeMap;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use parking_lot::Mutex;

use super::driver::{self, Handle};
use super::pool::Pool;

static SEATS: Mutex<BTreeMap<usize, Seat>> = Mutex::new(BTreeMap::new());

struct Seat {
    /// The pool that served before any of ours did; whoever made it keeps it alive, as CUDA does its default pool.
    before: Handle,
    ours: Handle,
}

/// Lets a pool serve every later allocation of the process on this device.
pub(super) fn take(context: &CudaContext, pool: &Pool) -> Result<(), DriverError> {
    let mut seats = SEATS.lock();
    let current = driver::current_pool(context)?;
    pool.make_current()?;
    // A pool of ours that has not given the seat back yet is about to go: what was before it was before us, too.
    let before = match seats.get(&context.ordinal()) {
        Some(seat) if seat.ours == current => seat.before,
        _ => current,
    };
    let ours = pool.handle();
    seats.insert(context.ordinal(), Seat { before, ours });
    Ok(())
}

/// Gives the seat back to the pool that served before, unless somebody else has taken it since: then it is theirs.
pub(super) fn leave(context: &CudaContext, pool: &Pool) {
    let mut seats = SEATS.lock();
    let Some(seat) = seats.remove(&context.ordinal()) else {
        return;
    };
    if seat.ours != pool.handle() {
        seats.insert(context.ordinal(), seat);
        return;
    }
    let left = driver::current_pool(context).and_then(|current| match current == seat.ours {
        // SAFETY: the pool served this device before ours did, and is kept alive by whoever made it.
        true => unsafe { driver::set_current_pool(context, seat.before) },
        false => Ok(()),
    });
    if let Err(error) = left {
        tracing::warn!(%error, "the device's former memory pool could not be made current again");
    }
}
