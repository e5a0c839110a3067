use std::fmt;

use parking_lot::Mutex;

use super::Limit;
use super::scope::Scopes;
use super::stats::MemoryStats;
use super::turn::Turns;
use crate::error::{MemoryReading, Neighbour, Resource, ResourceExhausted, Result};

/// The memory behind a [`DeviceMemory`](super::DeviceMemory): the process's own on the host, a pool on a GPU. `None` is what the driver or the
/// allocator does not report.
pub(super) trait Backing: fmt::Debug + Send + Sync {
    fn resource(&self) -> Resource;

    fn limit(&self) -> Option<u64>;

    fn set_limit(&self, limit: Limit) -> Result<()>;

    fn in_use(&self) -> Option<u64>;

    /// Bytes that this program can still take, apart from its limit.
    fn free(&self) -> Option<u64>;

    /// Bytes in use, the limit, and what else costs little to read. Changes nothing.
    fn reading(&self) -> MemoryReading;

    /// Work on the pool that is due before a micro-batch.
    fn maintain(&self) {}

    fn stats(&self) -> MemoryStats;

    /// The highest use since it was last taken.
    fn take_peak(&self) -> Option<u64>;

    /// The open peak scopes.
    fn scopes(&self) -> &Mutex<Scopes>;

    /// The order in which the trainers on this memory work.
    fn turns(&self) -> &Turns;

    fn reset_peak(&self) {
        self.scopes().lock().reset(self.take_peak());
    }

    /// Returns unused memory to the device.
    fn trim(&self) -> Result<()>;

    /// Sets the memory's state, and the cause if it follows from the state. `need` is the known use of work of this size.
    fn describe(&self, exhausted: &mut ResourceExhausted, need: Option<u64>);

    /// Other processes that hold memory of the same device, if the driver lists them.
    fn neighbours(&self) -> Vec<Neighbour> {
        Vec::new()
    }
}
