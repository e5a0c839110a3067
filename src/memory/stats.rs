use std::fmt;

use bytesize::ByteSize;

/// A device's memory at one moment, in bytes. Unknown figures are `None`, never 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes that the program holds now; on the host all live bytes of the process, candle's and others.
    pub in_use: Option<u64>,
    /// The highest `in_use` since the program started or the peak was reset; on the host within
    /// [`PEAK_ERROR`](super::PEAK_ERROR).
    pub peak: Option<u64>,
    /// Bytes that the pool has taken from the device, in use or kept for reuse; `None` on the host.
    pub reserved: Option<u64>,
    /// The highest `reserved` since the memory was opened or the peak was reset.
    pub peak_reserved: Option<u64>,
    /// The limit, if one is set.
    pub limit: Option<u64>,
    /// How the limit is enforced; `None` without a limit.
    pub enforcement: Option<Enforcement>,
    /// Bytes that programs can still take, as reported by the operating system or the driver; on a GPU without the pool's unused memory.
    pub free: Option<u64>,
    /// The device's capacity; on the host the machine's memory or the container's limit, whichever is less.
    pub total: Option<u64>,
    /// Bytes taken on the GPU outside the pool: CUDA's contexts and modules, workspaces of NVIDIA's libraries, tensors created before the
    /// memory was opened, and other processes. The driver does not report which.
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
    /// Allocations over the limit succeed; trainers check the use after the forward pass and after each micro-batch, and reduce the
    /// size.
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
        write!(f, "in use {}", Bytes(self.in_use))?;
        write!(f, ", peak {}", Bytes(self.peak))?;
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

/// Formats a number of bytes, or `n/a`.
pub(crate) struct Bytes(pub(crate) Option<u64>);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => ByteSize(bytes).fmt(f),
            None => f.write_str("n/a"),
        }
    }
}
