use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::error::DataError;

/// The number of samples that were skipped.
pub(super) type Skipped = Arc<AtomicUsize>;

/// What to do about a sample that cannot be read.
#[derive(Debug, Clone, Default)]
pub(super) struct Failing {
    /// How often it is read again.
    pub(super) retries: usize,
    /// How many samples may be left out in all.
    pub(super) skips: usize,
    pub(super) skipped: Skipped,
}

impl Failing {
    /// Leaves out a sample that failed, or returns its error.
    pub(super) fn skip(&self, failed: DataError) -> Result<(), DataError> {
        let more = |skipped| (skipped < self.skips).then_some(skipped + 1);
        match self.skipped.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => {
                tracing::warn!(error = %failed, "a sample is skipped");
                Ok(())
            }
            Err(0) => Err(failed),
            Err(skipped) => Err(DataError::TooManySkipped {
                skipped,
                reason: Box::new(failed),
            }),
        }
    }
}
