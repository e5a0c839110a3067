use std::sync::Arc;

use super::failing::Failing;
use super::jobs::Job;
use crate::data::caught::caught;
use crate::data::check::Checks;
use crate::data::{Dataset, Tensors};
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
    /// No sample of the batch could be read, and all were left out.
    Skipped,
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
        let reason = match caught(|| (self.collate)(samples)) {
            Ok(Ok(batch)) => {
                self.checks.check(&batch, indices, dataset, is_first)?;
                return Ok(batch);
            }
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

/// Reads samples of a dataset.
pub(super) struct FromDataset<D: Dataset, B> {
    pub(super) dataset: Arc<D>,
    pub(super) finish: Finish<D::Sample, B>,
    pub(super) failing: Failing,
}

impl<D: Dataset, B: Tensors> Produce<B> for FromDataset<D, B> {
    fn make(&self, job: &Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>, DataError> {
        let (mut samples, mut indices) = (Vec::with_capacity(job.indices.len()), Vec::new());
        for &index in &job.indices {
            if is_stopped() {
                return Ok(Made::Stopped);
            }
            match self.sample(index) {
                Ok(sample) => {
                    samples.push(sample);
                    indices.push(index);
                }
                Err(failed) => self.failing.skip(failed)?,
            }
        }
        if samples.is_empty() && job.indices.len() == job.samples {
            return Ok(Made::Skipped);
        }
        let name = || self.dataset.name();
        Ok(Made::Batch {
            batch: self.finish.finish(samples, &indices, job.is_first, name)?,
            indices,
            samples: job.samples,
        })
    }
}

impl<D: Dataset, B> FromDataset<D, B> {
    fn sample(&self, index: usize) -> Result<D::Sample, DataError> {
        let mut tries = 0;
        loop {
            let reason = match caught(|| self.dataset.get(index)) {
                Ok(Ok(sample)) => return Ok(sample),
                Ok(Err(reason)) => reason,
                // It may have left the dataset in any state.
                Err(message) => {
                    let dataset = self.dataset.name();
                    return Err(DataError::Panicked {
                        dataset,
                        index,
                        message,
                    });
                }
            };
            if tries == self.failing.retries {
                return Err(self.unread(index, reason));
            }
            tries += 1;
            tracing::debug!(index, tries, %reason, "reading a sample again");
        }
    }

    fn unread(&self, index: usize, reason: BoxedError) -> DataError {
        match reason.downcast::<DataError>() {
            // A part of the dataset has named itself and its index.
            Ok(named) if matches!(*named, DataError::Sample { .. }) => *named,
            Ok(other) => self.unread_for(index, other),
            Err(other) => self.unread_for(index, other),
        }
    }

    fn unread_for(&self, index: usize, reason: BoxedError) -> DataError {
        DataError::Sample {
            dataset: self.dataset.name(),
            index,
            reason,
        }
    }
}
