use super::attempt::Attempt;
use crate::error::{Error, Holding, Remedy};

/// The work that an [`Engine`](super::Engine) cuts into micro-batches.
pub(crate) trait Work<T> {
    /// Processes one micro-batch, or leaves everything as it was.
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<T, Failure>;

    /// Returns the memory held by what is trained, and what would reduce it.
    fn held(&self) -> (Vec<Holding>, Vec<Remedy>) {
        (Vec::new(), Vec::new())
    }
}

impl<T, F: FnMut(&Attempt<'_>) -> Result<T, Failure>> Work<T> for F {
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<T, Failure> {
        self(attempt)
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::MicroBatch(error)
    }
}
