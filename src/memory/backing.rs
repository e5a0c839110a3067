use std::fmt;

use candle_core::Device;

use super::limit::Room;
use super::stats::MemoryStats;
use crate::error::{MemoryReading, Neighbour, Result};

/// The source of a [`DeviceMemory`](super::DeviceMemory)'s figures: the counting allocator on the host, pools on a GPU. What the allocator or the
/// driver does not report is `None`.
pub(super) trait Backing: fmt::Debug + Send + Sync {
    /// Bytes in use and reserved now. It is cheap, and changes nothing.
    fn usage(&self) -> MemoryReading;

    /// All figures but `peak` and `limit`. `enforcement` is set even without a limit.
    fn stats(&self) -> MemoryStats;

    /// The highest use since the last call.
    fn take_peak(&self) -> Option<u64>;

    /// The memory from which a limit is computed. Fails where limits are not possible.
    fn room(&self) -> Result<Room>;

    /// Changes the limit, or nothing if it fails.
    fn set_limit(&self, bytes: Option<u64>) -> Result<()>;

    /// Waits until freed memory is free on the device too.
    fn synchronize(&self, _: &Device) -> Result<()> {
        Ok(())
    }

    /// Returns unused memory to the device.
    fn trim(&self) -> Result<()> {
        Ok(())
    }

    /// Does the work on the pool that is due before a micro-batch.
    fn maintain(&self) {}

    fn reset_peak_reserved(&self) {}

    /// Other processes that hold memory of the same device, if the driver lists them.
    fn neighbours(&self) -> Vec<Neighbour> {
        Vec::new()
    }
}
