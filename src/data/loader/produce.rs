//! From samples to a batch, on a worker: reads and collates by the user's code, whose errors and panics become this crate's, and leaves out what may
//! be left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use super::jobs::Job;
use crate::data::Tensors;
use crate::data::caught;
use crate::data::check::{Check, look};
use crate::error::{BoxedError, DataError, Error, Invalid, Result, Subject, invalid};

/// Makes a batch of samples.
pub(super) type Collate<S, B> = Box<dyn Fn(Vec<S>) -> Result<B, BoxedError> + Send + Sync>;

/// What a worker has made of a job.
#[derive(Debug)]
pub(super) enum Made<B> {
    Batch(B),
    /// No sample of the batch could be read, and all were left out.
    Skipped,
    /// The stream has no more samples in this epoch.
    EndOfEpoch,
    /// The loader was dropped meanwhile.
    Stopped,
}

/// What workers do; it does not say of which samples.
pub(super) trait Produce<B>: Send + Sync {
    /// Makes the batch of a job, whose indices and samples are then those that were read.
    fn make(&self, job: &mut Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>>;
}

/// The number of samples that were skipped.
pub(super) type Skipped = Arc<AtomicUsize>;

/// Reads samples and makes them into batches, whatever they come from.
pub(super) struct Maker<S, B> {
    /// Of the dataset or the stream, for errors.
    pub(super) name: String,
    pub(super) collate: Collate<S, B>,
    pub(super) checks: Vec<Check>,
    /// Not only the first one.
    pub(super) checks_every_batch: bool,
    pub(super) has_checked: AtomicBool,
    /// How often a sample that failed is read again.
    pub(super) retries: usize,
    /// How many samples may be left out in all.
    pub(super) skips: usize,
    pub(super) skipped: Skipped,
}

impl<S, B: Tensors> Maker<S, B> {
    /// Runs the user's code that reads a sample.
    pub(super) fn read<T>(
        &self,
        index: usize,
        read: impl FnOnce() -> Result<T, BoxedError>,
    ) -> Result<T> {
        let (dataset, unread) = (&self.name, |reason| DataError::Sample {
            dataset: self.name.clone(),
            index,
            reason,
        });
        match caught(read) {
            Ok(Ok(sample)) => Ok(sample),
            Ok(Err(reason)) => Err(match reason.downcast::<DataError>() {
                // A part of the dataset has named itself and its index.
                Ok(named) if matches!(*named, DataError::Sample { .. }) => *named,
                Ok(other) => unread(other),
                Err(other) => unread(other),
            }
            .into()),
            Err(message) => Err(invalid!(
                Data,
                "{dataset}: reading sample {index} panicked: {message}"
            )),
        }
    }

    /// The same, up to `retries` times more. A panic is final: it may have left the dataset in any state.
    pub(super) fn read_again<T>(
        &self,
        index: usize,
        read: impl Fn() -> Result<T, BoxedError>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            match self.read(index, &read) {
                Err(Error::Data(error)) if tries < self.retries => {
                    tries += 1;
                    tracing::debug!(index, tries, %error, "reading a sample again");
                }
                read => return read,
            }
        }
    }

    /// Leaves out a sample that failed, or returns its error.
    pub(super) fn skip(&self, failed: Error) -> Result<()> {
        let more = |skipped| (skipped < self.skips).then_some(skipped + 1);
        match self.skipped.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => {
                tracing::warn!(error = %failed, "a sample is skipped");
                Ok(())
            }
            Err(0) => Err(failed),
            Err(skipped) => {
                let text = format!(
                    "{failed}; {skipped} samples were skipped before, as many as `skip_failures` allows"
                );
                Err(Invalid::new(Subject::Data, text).showing(failed).into())
            }
        }
    }

    /// Makes a batch of the samples of a job that are this rank's. Without any, and if other ranks may have some, it is what `empty` makes;
    /// `None` if the loader was dropped meanwhile.
    pub(super) fn batch(
        &self,
        job: &Job,
        samples: Vec<S>,
        empty: impl FnOnce() -> Result<Option<B>>,
    ) -> Result<Made<B>> {
        let batch = match job.division.ranks() {
            _ if !samples.is_empty() => {
                let batch = self.collate(samples, &job.indices)?;
                self.check(&batch, &job.indices, job)?;
                Some(batch)
            }
            1 => return Ok(Made::Skipped),
            _ => empty()?,
        };
        Ok(batch.map_or(Made::Stopped, Made::Batch))
    }

    /// A batch without samples, of the kind of those with this one.
    pub(super) fn empty(&self, job: &Job, sample: S, index: usize) -> Result<B> {
        let mut batch = self.collate(vec![sample], &[index])?;
        let removed = batch.remove_samples();
        removed.map_err(|reason| self.refused(&[index], reason.into()))?;
        self.check(&batch, &[], job)?;
        Ok(batch)
    }

    fn check(&self, batch: &B, indices: &[usize], job: &Job) -> Result<()> {
        // The first batch may have failed before it could be looked at.
        let is_first = !self.has_checked.swap(true, Relaxed) || job.is_first;
        if is_first || self.checks_every_batch {
            look(batch, &self.checks, Some(indices), &self.name, is_first)?;
        }
        Ok(())
    }

    fn collate(&self, samples: Vec<S>, indices: &[usize]) -> Result<B> {
        let made = caught(|| (self.collate)(samples));
        let made = made.unwrap_or_else(|message| Err(format!("it panicked: {message}").into()));
        made.map_err(|reason| self.refused(indices, reason))
    }

    fn refused(&self, indices: &[usize], reason: BoxedError) -> Error {
        let (name, first) = (&self.name, first(indices));
        let text = format!("{name}: samples {first} cannot be made into a batch: {reason}");
        Invalid::new(Subject::Data, text).showing(reason).into()
    }
}

/// The first indices, and how many more there are.
fn first(indices: &[usize]) -> String {
    const SHOWN: usize = 8;
    match indices.get(..SHOWN) {
        Some(first) if indices.len() > SHOWN => {
            format!("{first:?} and {} more", indices.len() - SHOWN)
        }
        _ => format!("{indices:?}"),
    }
}
