use bytesize::ByteSize;

use crate::error::{MemoryError, Result};

/// The fraction of the machine's or container's available memory that [`Limit::Auto`] takes. The rest is for memory that the
/// allocator does not count (code, stacks, mapped files, the allocator's own reserve) and for other programs.
pub const AUTO_FRACTION: f64 = 0.8;

/// The fraction of a GPU's free memory that [`Limit::Auto`] takes: more than on the host, because only kernels and the workspaces of
/// NVIDIA's libraries are outside the pool.
pub const DEVICE_AUTO_FRACTION: f64 = 0.9;

/// The memory that a program may use.
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
            return Err(MemoryError::Fraction(fraction).into());
        }
        let whole = whole.ok_or(MemoryError::Undetermined)?;
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
