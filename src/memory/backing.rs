use std::fmt;

use parking_lot::Mutex;

use super::Limit;
use super::scope::Scopes;
use super::stats::MemoryStats;
use super::turn::Turns;
use crate::error::{MemoryReading, Neighbour, Resource, ResourceExhausted, Result};

/// What a [`DeviceMemory`](super::DeviceMemory) asks of the memory behind it: the process's own on the host, a pool on a GPU.
///
/// Where the driver or the allocator cannot answer, the answer is `None`.
pub(super) trait Backing: fmt::Debug + Send + Sync {
    fn resource(&self) -> Resource;

    fn limit(&self) -> Option<u64>;

    fn set_limit(&self, limit: Limit) -> Result<()>;

    fn in_use(&self) -> Option<u64>;

    /// Bytes that this program could still take, apart from its limit.
    fn free(&self) -> Option<u64>;

    /// Bytes in use, the limit, and what else costs little to read. Changes nothing.
    fn reading(&self) -> MemoryReading;

    /// Work on the pool that is due between micro-batches.
    fn maintain(&self) {}

    fn stats(&self) -> MemoryStats;

    /// The highest use since it was last taken.
    fn take_peak(&self) -> Option<u64>;

    /// Every stretch whose peak is being measured.
    fn scopes(&self) -> &Mutex<Scopes>;

    /// The order in which the trainers on this memory work.
    fn turns(&self) -> &Turns;

    fn reset_peak(&self) {
        self.scopes().lock().reset(self.take_peak());
    }

    /// Gives back what is held and not used.
    fn trim(&self) -> Result<()>;

    /// Fills in the memory's state, and the cause where it can be told from that.
    /// `need` is what work of the failed one's size is known to take.
    fn describe(&self, exhausted: &mut ResourceExhausted, need: Option<u64>);

    /// The other processes that hold memory of the same device, where the driver tells.
    fn neighbours(&self) -> Vec<Neighbour> {
        Vec::new()
    }
}
