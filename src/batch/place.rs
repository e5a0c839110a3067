use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a batch comes in the order of a loader; places compare as the batches come. They are the same on all ranks.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Place(u64, u64, u64);

impl Place {
    /// The place of a batch of a loader: its epoch, its window in the epoch, and its place in the window.
    pub(crate) fn new((epoch, window, batch): (u64, usize, usize)) -> Self {
        Self(epoch, window as u64, batch as u64)
    }

    /// Returns it as bytes, to be sent to other ranks.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let numbers = [self.0, self.1, self.2].map(u64::to_le_bytes);
        for (to, from) in bytes.iter_mut().zip(numbers.as_flattened()) {
            *to = *from;
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) returned.
    pub fn from_bytes(bytes: [u8; 24]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().unwrap_or_default();
        Self(next(), next(), next())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(epoch, window, batch) = self;
        write!(f, "batch {batch} of window {window} of epoch {epoch}")
    }
}
