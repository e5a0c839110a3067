use super::jobs::Job;
use crate::data::Tensors;
use crate::data::caught::caught;
use crate::data::check::Checks;
use crate::error::{BoxedError, DataError};

/// Makes a batch of samples.
pub(super) type Collate<S, B> = Box<dyn Fn(Vec<S>) -> Result<B, BoxedError> + Send + Sync>;

/// What a worker has made of a job.
#[derive(Debug)]
pub(super) enum Made<B> {
    Batch {
        batch: B,
        indices: Vec<usize>,
        /// Samples of all ranks.
        samples: usize,
    },
    /// No sample of the batch could be read, and all, so many, were left out.
    Skipped(usize),
    /// The stream has no more samples in this epoch.
    EndOfEpoch,
    /// The loader was dropped meanwhile.
    Stopped,
}

/// What workers do; it does not say of which samples.
pub(super) trait Produce<B>: Send + Sync {
    fn make(&self, job: &Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>, DataError>;
}

/// Makes samples into a batch, and checks it.
pub(super) struct Finish<S, B> {
    pub(super) collate: Collate<S, B>,
    pub(super) checks: Checks,
}

impl<S, B: Tensors> Finish<S, B> {
    pub(super) fn finish(
        &self,
        samples: Vec<S>,
        indices: &[usize],
        is_first: bool,
        dataset: impl Fn() -> String,
    ) -> Result<B, DataError> {
        let batch = self.collate(samples, indices, &dataset)?;
        self.checks.check(&batch, indices, dataset, is_first)?;
        Ok(batch)
    }

    /// A batch without samples, of the kind of those with this one.
    pub(super) fn empty(
        &self,
        sample: S,
        index: usize,
        is_first: bool,
        dataset: impl Fn() -> String,
    ) -> Result<B, DataError> {
        let mut batch = self.collate(vec![sample], &[index], &dataset)?;
        batch
            .remove_samples()
            .map_err(|reason| DataError::Collate {
                dataset: dataset(),
                indices: vec![index],
                reason: reason.into(),
            })?;
        self.checks.check(&batch, &[], dataset, is_first)?;
        Ok(batch)
    }

    fn collate(
        &self,
        samples: Vec<S>,
        indices: &[usize],
        dataset: impl Fn() -> String,
    ) -> Result<B, DataError> {
        let reason = match caught(|| (self.collate)(samples)) {
            Ok(Ok(batch)) => return Ok(batch),
            Ok(Err(reason)) => reason,
            Err(message) => format!("it panicked: {message}").into(),
        };
        Err(DataError::Collate {
            dataset: dataset(),
            indices: indices.to_vec(),
            reason,
        })
    }
}
