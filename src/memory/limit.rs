//! Limits, how memory grows, and the figures of a device. A limit is resolved to bytes once, when it is set.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use candle_core::Device;

use crate::error::{Error, MemoryReading, Neighbour, Result, invalid};

/// The fraction of the machine's or container's available memory that [`Limit::Auto`] takes. The rest is for memory that the
/// allocator does not count (code, stacks, mapped files, the allocator's own reserve) and for other programs.
pub const AUTO_FRACTION: f64 = 0.8;

/// The fraction of a GPU's free memory that [`Limit::Auto`] takes: more than on the host, because only kernels and the workspaces of
/// NVIDIA's libraries are outside the pool.
pub const DEVICE_AUTO_FRACTION: f64 = 0.9;

/// Bytes of a GPU of `total` bytes that policies leave free where no limit is set: 3 %, and at least 512 MiB from 4 GiB on.
///
/// Outside the pool live the workspaces of NVIDIA's libraries, kernels, which CUDA loads at their first use, and what kernels keep in local
/// memory: 96 MiB more after every layer of this crate has run on an H200. A library that fails while less is free counts as an
/// [exhaustion](crate::error::Resource::LibraryWorkspace). A limit is used in full as long as the device has this much besides.
///
/// ```
/// use candle_headroom::memory::library_reserve;
///
/// assert_eq!(library_reserve(8 << 30), 512 << 20);
/// assert_eq!(library_reserve(24_000_000_000), 720_000_000);
/// ```
pub const fn library_reserve(total: u64) -> u64 {
    let part = total / 100 * 3;
    match total < 4 << 30 || part > 512 << 20 {
        true => part,
        false => 512 << 20,
    }
}

/// Bytes that the pool may hold: what it holds and what is free, less the [`library_reserve`] of a device whose size is known. `None` if one of
/// the first two is not known.
pub(crate) fn pool_bound(now: &MemoryReading) -> Option<u64> {
    let held = now.free?.saturating_add(now.reserved?);
    Some(held.saturating_sub(now.total.map_or(0, library_reserve)))
}

/// The memory that a program may use.
///
/// A number of bytes, as [`u64`] or [`ByteSize`], converts into it, and a text is parsed: `8GiB`, `50%`, `auto` or `none`. So it can be
/// an option of a program. A fraction outside (0, 1] is refused when the limit is set.
///
/// ```
/// use candle_headroom::ByteSize;
/// use candle_headroom::memory::Limit;
///
/// assert_eq!(Limit::from(ByteSize::gib(8)), "8GiB".parse()?);
/// assert_eq!(Limit::Fraction(0.5), "50%".parse()?);
/// assert_eq!(Limit::default(), Limit::Unlimited);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub enum Limit {
    /// No limit.
    #[default]
    Unlimited,
    /// This number of bytes, for the whole process.
    Bytes(ByteSize),
    /// A fraction in (0, 1] of the device's capacity; on the host of the machine's or the container's memory, whichever is less.
    /// TensorFlow calls it `per_process_gpu_memory_fraction`.
    Fraction(f64),
    /// Most of the memory that is available when the limit is set: on a GPU [`DEVICE_AUTO_FRACTION`] of the free memory plus the pool's,
    /// on the host [`AUTO_FRACTION`] of the control group's limit (version 2 or 1) or of `MemAvailable` plus the process's own use,
    /// whichever is less.
    Auto,
}

/// When the pool of a GPU takes memory from the driver, and when it returns it.
///
/// | | takes memory | returns it | in TensorFlow |
/// |---|---|---|---|
/// | [`OnDemand`](Self::OnDemand) | when it is needed | by [`trim`](super::DeviceMemory::trim) | `set_memory_growth(gpu, True)` |
/// | [`Preallocate`](Self::Preallocate) | at once | by [`trim`](super::DeviceMemory::trim) | the default |
/// | [`ReturnAtSync`](Self::ReturnAtSync) | when it is needed | at every synchronization | – |
///
/// A limit may be set with each of them.
///
/// ```no_run
/// use candle_headroom::memory::Growth;
/// use candle_headroom::{ByteSize, DeviceMemory};
///
/// // Nobody else can take these 16 GiB while the program runs.
/// let builder = DeviceMemory::cuda(0).growth(Growth::Preallocate);
/// let memory = builder.limit(ByteSize::gib(16)).open()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// Takes memory when it is needed, and keeps it for reuse. TensorFlow calls it memory growth.
    #[default]
    OnDemand,
    /// Takes the whole limit, or without one what [`Limit::Auto`] would allow, when the memory is opened, so that no other process can:
    /// TensorFlow's default. Only [`trim`](super::DeviceMemory::trim) returns it. How far the limit can be lowered depends on the driver:
    /// memory taken in one piece may stay as long as one tensor lies in it.
    Preallocate,
    /// Returns unused memory at every synchronization, as CUDA does by default. Other processes get it soon; a loop that synchronizes
    /// pays for taking it again each time.
    ReturnAtSync,
}

/// The memory that a limit is a part of, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) total: Option<u64>,
    /// The memory that this program holds or can still take.
    pub(super) usable: Option<u64>,
    pub(super) auto_fraction: f64,
}

impl Limit {
    /// The limit in bytes; `None` for [`Unlimited`](Self::Unlimited). For any other limit `room` is asked, because it fails where none is possible.
    pub(super) fn resolve(self, room: impl FnOnce() -> Result<Room>) -> Result<Option<u64>> {
        if self == Self::Unlimited {
            return Ok(None);
        }
        let room = room()?;
        let (whole, fraction) = match self {
            Self::Unlimited => return Ok(None),
            Self::Bytes(bytes) => return Ok(Some(bytes.as_u64())),
            Self::Fraction(fraction) => (room.total, fraction),
            Self::Auto => (room.usable, room.auto_fraction),
        };
        if !(fraction > 0. && fraction <= 1.) {
            return Err(invalid!(
                Memory,
                "limit fraction must be in (0, 1], got {fraction:?}"
            ));
        }
        let whole = whole.ok_or_else(|| {
            invalid!(
                Memory,
                "the available memory cannot be read on this machine: give the limit in bytes"
            )
        })?;
        Ok(Some((whole as f64 * fraction) as u64))
    }
}

impl From<u64> for Limit {
    fn from(bytes: u64) -> Self {
        Self::Bytes(ByteSize(bytes))
    }
}

impl From<ByteSize> for Limit {
    fn from(bytes: ByteSize) -> Self {
        Self::Bytes(bytes)
    }
}

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let percent = text.strip_suffix('%');
        let percent = percent.and_then(|number| number.trim().parse::<f64>().ok());
        match text {
            "none" => Ok(Self::Unlimited),
            "auto" => Ok(Self::Auto),
            _ => match (percent, text.parse()) {
                (Some(percent), _) => Ok(Self::Fraction(percent / 100.)),
                (None, Ok(bytes)) => Ok(Self::Bytes(bytes)),
                (None, Err(_)) => Err(invalid!(
                    Memory,
                    "cannot read the limit {text:?}: write bytes such as 8GiB, a part such as 50%, auto or none"
                )),
            },
        }
    }
}

/// A device's memory at one moment, in bytes. Unknown figures are `None`, never 0.
///
/// `{}` is one line. On a GPU `reserved` is what other programs see as taken by this one's pool, and `in_use` is the part of it that
/// tensors hold:
///
/// ```
/// use candle_headroom::memory::MemoryStats;
///
/// let mut stats = MemoryStats::default();
/// (stats.in_use, stats.peak) = (Some(3 << 30), Some(5 << 30));
/// (stats.reserved, stats.limit) = (Some(6 << 30), Some(8 << 30));
/// let shown = "in use 3.0 GiB, peak 5.0 GiB, reserved 6.0 GiB, limit 8.0 GiB";
/// assert_eq!(stats.to_string(), shown);
/// assert_eq!(stats.fragmentation(), Some(3 << 30));
/// ```
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
}

/// How a limit is enforced.
///
/// ```
/// use candle_headroom::memory::{Enforcement, MemoryStats};
///
/// let mut stats = MemoryStats::default();
/// (stats.limit, stats.enforcement) = (Some(8 << 30), Some(Enforcement::Soft));
/// assert_eq!(stats.to_string(), "in use n/a, peak n/a, soft limit 8.0 GiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// The driver refuses allocations over the limit.
    Hard,
    /// Allocations over the limit succeed; trainers check the use after the forward pass and each micro-batch, and reduce the size.
    Soft,
}

impl MemoryStats {
    /// Bytes that the pool holds unused: kept for reuse, or in pieces between used blocks; `None` on the host.
    ///
    /// Right after a large tensor was dropped this is memory ready for the next one. If it stays large while allocations fail, it lies in
    /// pieces, and [`recover`](super::recover) or [`trim`](super::DeviceMemory::trim) gives it back.
    ///
    /// ```
    /// use candle_headroom::memory::MemoryStats;
    ///
    /// let mut stats = MemoryStats::default();
    /// assert_eq!(stats.fragmentation(), None);
    /// (stats.in_use, stats.reserved) = (Some(3 << 30), Some(5 << 30));
    /// assert_eq!(stats.fragmentation(), Some(2 << 30));
    /// ```
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

    /// The highest use since a peak was taken; with `take`, the next one begins now.
    fn peak(&self, take: bool) -> Option<u64>;

    /// The memory from which a limit is computed. Fails where limits are not possible.
    fn room(&self) -> Result<Room>;

    /// Changes the limit, or nothing if it fails.
    fn set_limit(&self, _: Option<u64>) -> Result<()> {
        Ok(())
    }

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
