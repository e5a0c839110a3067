use bytesize::ByteSize;

use crate::error::MemoryError;

/// What [`Limit::Auto`] leaves of the memory that the machine or the container has to give: the rest is for what the
/// allocator does not see (code, stacks, mapped files, the allocator's own reserve) and for other programs.
pub const AUTO_FRACTION: f64 = 0.8;

/// What [`Limit::Auto`] takes on a GPU, of what is free when its memory is opened. Less is left than on the host: outside the pool
/// lie only kernels and the workspaces of NVIDIA's libraries.
pub const DEVICE_AUTO_FRACTION: f64 = 0.9;

/// How much memory a program may use.
///
/// ```
/// use candle_headroom::memory::Limit;
/// use candle_headroom::ByteSize;
///
/// assert_eq!(Limit::from(ByteSize::mib(256)), Limit::Bytes(ByteSize::mib(256)));
/// assert_eq!(Limit::default(), Limit::Unlimited);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub enum Limit {
    /// As much as there is.
    #[default]
    Unlimited,
    /// This much, for the whole process.
    Bytes(ByteSize),
    /// This part of the device's capacity, above 0 and at most 1; on the host of the machine's memory, or of the container's
    /// where that is less. TensorFlow calls it `per_process_gpu_memory_fraction`.
    Fraction(f64),
    /// What can be had at the moment when the limit is set, with something to spare. On the host [`AUTO_FRACTION`] of the least
    /// of the control group's limit (version 2 or 1) and the available memory (`MemAvailable`, and what the process itself holds
    /// already). On a GPU [`DEVICE_AUTO_FRACTION`] of what is free and of what the process's pool holds already.
    Auto,
}

/// What there is to be limited, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) total: Option<u64>,
    /// What this program may have in all, with what it holds already.
    pub(super) usable: Option<u64>,
    pub(super) auto_fraction: f64,
}

impl Limit {
    /// The limit in bytes; `None` for [`Unlimited`](Self::Unlimited).
    pub(super) fn resolve(self, room: Room) -> Result<Option<u64>, MemoryError> {
        let (of, fraction) = match self {
            Self::Unlimited => return Ok(None),
            Self::Bytes(bytes) => return Ok(Some(bytes.as_u64())),
            Self::Fraction(fraction) if fraction > 0. && fraction <= 1. => (room.total, fraction),
            Self::Fraction(fraction) => {
                return Err(MemoryError::Fraction {
                    fraction: fraction.to_string(),
                });
            }
            Self::Auto => (room.usable, room.auto_fraction),
        };
        let of = of.ok_or(MemoryError::Undetermined)?;
        Ok(Some((of as f64 * fraction) as u64))
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
