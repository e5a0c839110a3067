use std::fmt;

use bytesize::ByteSize;

/// A device's memory at one moment, in bytes. What is not known is `None`, never 0.
///
/// ```
/// let memory = candle_headroom::DeviceMemory::host().open()?;
/// let stats = memory.stats();
/// // This program has not installed the tracking allocator, so nobody counts.
/// assert_eq!(stats.in_use, None);
/// assert_eq!(stats.to_string(), "in use n/a, peak n/a, no limit");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes that the program holds now. On the host: requested from the tracking allocator and not given back, by candle and
    /// by everything else in the process.
    pub in_use: Option<u64>,
    /// The highest `in_use` since the program started or the peak was reset; on the host within
    /// [`PEAK_ERROR`](super::PEAK_ERROR).
    pub peak: Option<u64>,
    /// What the pool holds of the device, in use or kept for reuse; `None` on the host, which has no pool of ours.
    pub reserved: Option<u64>,
    /// The highest `reserved` since the memory was opened or the peak was reset.
    pub peak_reserved: Option<u64>,
    /// The limit, if one is set.
    pub limit: Option<u64>,
    /// How the limit is enforced; `None` without a limit.
    pub enforcement: Option<Enforcement>,
    /// What the operating system or the driver says other programs and this one could still take. It moves with every program
    /// on the machine. On a GPU the pool's own unused memory is not in it.
    pub free: Option<u64>,
    /// The device's capacity; on the host the machine's memory, or the container's limit where that is less.
    pub total: Option<u64>,
    /// What is taken on the GPU and does not belong to the pool: CUDA's contexts and modules, workspaces of NVIDIA's libraries,
    /// tensors from before the memory was opened, other processes. Which of them holds it cannot be told from here.
    pub unaccounted: Option<u64>,
    /// The first request that took the program over its limit, since the limit was set; the host's allocator notes it.
    pub first_over_limit: Option<OverLimit>,
}

/// How a limit is enforced.
///
/// ```
/// use candle_headroom::memory::Enforcement;
/// use candle_headroom::DeviceMemory;
///
/// // On the host a limit can only be soft; here there is none.
/// let enforcement = DeviceMemory::host().open()?.stats().enforcement;
/// assert_ne!(enforcement, Some(Enforcement::Hard));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// The driver refuses allocations over the limit.
    Hard,
    /// Allocations over the limit succeed; trainers look at the use after the forward pass and after each micro-batch, and cut the
    /// work smaller.
    Soft,
}

/// A request that took the program over its limit.
///
/// ```
/// let memory = candle_headroom::DeviceMemory::host().open()?;
/// if let Some(over) = memory.stats().first_over_limit {
///     println!("a request of {} bytes led to {} in use", over.requested, over.in_use);
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverLimit {
    /// What was asked for, in bytes; for small requests, counted in batches, the batch.
    pub requested: u64,
    /// What was in use with it, in bytes.
    pub in_use: u64,
}

impl MemoryStats {
    /// What the pool holds and nobody uses, in bytes: kept for reuse, or lying in pieces between what is used.
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

/// A number of bytes that may not be known.
pub(crate) struct Bytes(pub(crate) Option<u64>);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => ByteSize(bytes).fmt(f),
            None => f.write_str("n/a"),
        }
    }
}
