use super::event::Event;
use crate::error::Error;

/// The result of a batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// Sizes of the finished micro-batches, in order.
    pub(crate) sizes: Vec<usize>,
    pub(crate) retries: usize,
    /// Number of samples that were computed again.
    pub(crate) recomputed: usize,
    pub(crate) events: Vec<Event>,
}

impl Outcome {
    pub(crate) fn extend(&mut self, other: Self) {
        self.sizes.extend(other.sizes);
        self.retries += other.retries;
        self.recomputed += other.recomputed;
        self.events.extend(other.events);
    }
}

/// How the work of a micro-batch failed.
pub(crate) enum Failure {
    /// Nothing of this micro-batch was kept; everything before it was.
    MicroBatch(Error),
    /// Everything that the batch had accumulated was lost too, so the batch has to start again.
    Batch(Error),
    /// Nothing may be retried, for example because a change could not be undone.
    Final(Error),
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::MicroBatch(error) | Self::Batch(error) | Self::Final(error) => error,
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::MicroBatch(error.into())
    }
}
