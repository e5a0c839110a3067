use bytesize::ByteSize;

use super::system::SystemMemory;
use crate::error::MemoryError;

/// What [`Limit::Auto`] leaves of the memory that the machine or the container has to give: the rest is for what the
/// allocator does not see (code, stacks, mapped files, the allocator's own reserve) and for other programs.
pub const AUTO_FRACTION: f64 = 0.8;

/// How much memory a program may use.
///
/// ```
/// use candle_headroom::{ByteSize, Limit};
///
/// assert_eq!(Limit::from(ByteSize::mib(256)), Limit::Bytes(ByteSize::mib(256)));
/// assert_eq!(Limit::default(), Limit::Unlimited);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// As much as there is.
    #[default]
    Unlimited,
    /// This much, for the whole process.
    Bytes(ByteSize),
    /// [`AUTO_FRACTION`] of the least of the control group's limit (version 2 or 1) and the available memory
    /// (`MemAvailable`, and what the process itself holds already) at the moment when the limit is set.
    Auto,
}

impl Limit {
    /// The limit in bytes; `None` for [`Unlimited`](Self::Unlimited).
    pub(super) fn resolve(self, in_use: u64) -> Result<Option<u64>, MemoryError> {
        match self {
            Self::Unlimited => Ok(None),
            Self::Bytes(bytes) => Ok(Some(bytes.as_u64())),
            Self::Auto => {
                let usable = SystemMemory::read().usable(in_use);
                let usable = usable.ok_or(MemoryError::Undetermined)?;
                Ok(Some((usable as f64 * AUTO_FRACTION) as u64))
            }
        }
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
