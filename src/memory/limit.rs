use bytesize::ByteSize;

use crate::error::MemoryError;

/// The fraction of the machine's or container's available memory that [`Limit::Auto`] takes. The rest is for what the
/// allocator does not count (code, stacks, mapped files, the allocator's own reserve) and for other programs.
pub const AUTO_FRACTION: f64 = 0.8;

/// The fraction of a GPU's free memory that [`Limit::Auto`] takes when the memory is opened. It is larger than on the host: only kernels and the
/// workspaces of NVIDIA's libraries are outside the pool.
pub const DEVICE_AUTO_FRACTION: f64 = 0.9;

/// The memory that a program may use.
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
    /// No limit.
    #[default]
    Unlimited,
    /// So many bytes, for the whole process.
    Bytes(ByteSize),
    /// A fraction in (0, 1] of the device's capacity; on the host of the machine's or container's memory, whichever is
    /// less. TensorFlow calls it `per_process_gpu_memory_fraction`.
    Fraction(f64),
    /// Most of what is available when the limit is set. On the host [`AUTO_FRACTION`] of the control group's limit (version 2 or 1) or the available
    /// memory (`MemAvailable` and what the process holds already), whichever is less. On a GPU [`DEVICE_AUTO_FRACTION`] of the free memory and of
    /// what the process's pool holds already.
    Auto,
}

/// The memory to be limited, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) total: Option<u64>,
    /// What this program can have in total, with what it holds already.
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
