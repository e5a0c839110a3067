use std::fmt;

use bytesize::ByteSize;
use candle_core::Device;

use super::limit::Room;
use crate::error::{MemoryReading, Neighbour, Result};

/// A device's memory at one moment, in bytes. Unknown figures are `None`, never 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes that the program holds now; on the host all live bytes of the process, candle's and others.
    pub in_use: Option<u64>,
    /// The highest `in_use` since the start or the last reset of the peak; on the host within [`PEAK_ERROR`](super::PEAK_ERROR).
    pub peak: Option<u64>,
    /// Bytes that the pool has taken from the device, in use or kept for reuse; `None` on the host.
    pub reserved: Option<u64>,
    /// The highest `reserved` since the memory was opened or the peak was reset.
    pub peak_reserved: Option<u64>,
    /// The limit, if one is set.
    pub limit: Option<u64>,
    /// How the limit is enforced; `None` without a limit.
    pub enforcement: Option<Enforcement>,
    /// Bytes that programs can still take, by the operating system or the driver; on a GPU without the pool's unused memory.
    pub free: Option<u64>,
    /// The device's capacity; on the host the machine's memory or the container's limit, whichever is less.
    pub total: Option<u64>,
    /// Bytes taken on the GPU outside the pool: CUDA's contexts and modules, workspaces of NVIDIA's libraries, tensors created before
    /// the memory was opened, and other processes. The driver does not report which.
    pub unaccounted: Option<u64>,
    /// The first request over the limit since it was set; on the host only.
    pub first_over_limit: Option<OverLimit>,
}

/// How a limit is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// The driver refuses allocations over the limit.
    Hard,
    /// Allocations over the limit succeed; trainers check the use after the forward pass and each micro-batch, and reduce the size.
    Soft,
}

/// A request over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverLimit {
    /// Its size in bytes. Small requests are counted in batches: then it is the batch's size.
    pub requested: u64,
    /// Bytes in use, this request included.
    pub in_use: u64,
}

impl MemoryStats {
    /// Bytes that the pool holds unused: kept for reuse, or in pieces between used blocks.
    pub fn fragmentation(&self) -> Option<u64> {
        Some(self.reserved?.saturating_sub(self.in_use?))
    }
}

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (in_use, peak) = (bytes_text(self.in_use), bytes_text(self.peak));
        write!(f, "in use {in_use}, peak {peak}")?;
        if let Some(reserved) = self.reserved {
            write!(f, ", reserved {}", ByteSize(reserved))?;
        }
        match (self.limit, self.enforcement) {
            (Some(limit), Some(Enforcement::Soft)) => write!(f, ", soft limit {}", ByteSize(limit)),
            (Some(limit), _) => write!(f, ", limit {}", ByteSize(limit)),
            (None, _) => f.write_str(", no limit"),
        }
    }
}

/// The source of a [`DeviceMemory`](super::DeviceMemory)'s figures: the counting allocator on the host, pools on a GPU. What they
/// do not report is `None`.
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

/// A number of bytes, or `n/a`.
pub(crate) fn bytes_text(bytes: Option<u64>) -> String {
    bytes.map_or("n/a".to_owned(), |bytes| ByteSize(bytes).to_string())
}
