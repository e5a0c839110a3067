//! From samples to a batch, on a worker: reads and collates by the user's code, whose errors and panics become this crate's, and leaves out what may
//! be left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::jobs::Job;
use crate::data::caught;
use crate::data::check::Checks;
use crate::data::stage::{Load, Stage};
use crate::data::{Tensors, tensors};
use crate::error::{BoxedError, DataError, Error, Invalid, Result, Subject, invalid};

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
    fn make(&self, job: &Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>>;
}

/// The number of samples that were skipped.
pub(super) type Skipped = Arc<AtomicUsize>;

/// Reads samples and makes them into batches, whatever they come from.
pub(super) struct Maker<S, B> {
    /// Of the dataset or the stream, for errors.
    pub(super) name: String,
    pub(super) collate: Collate<S, B>,
    pub(super) checks: Checks,
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
            Err(skipped) => Err(DataError::TooManySkipped {
                skipped,
                reason: failed.into(),
            }
            .into()),
        }
    }

    /// Makes a batch of the samples of a job that are this rank's, of `all` ranks' so many. Without any, and if other ranks may have some,
    /// it is what `empty` makes; `None` if the loader was dropped meanwhile.
    pub(super) fn batch(
        &self,
        job: &Job,
        samples: Vec<S>,
        indices: Vec<usize>,
        all: usize,
        empty: impl FnOnce() -> Result<Option<B>>,
    ) -> Result<Made<B>> {
        let batch = match job.division.ranks() {
            _ if !samples.is_empty() => {
                let batch = self.collate(samples, &indices)?;
                let (checks, name) = (&self.checks, &self.name);
                checks.check(&batch, &indices, name, job.is_first)?;
                Some(batch)
            }
            1 => return Ok(Made::Skipped(all)),
            _ => empty()?,
        };
        Ok(batch.map_or(Made::Stopped, |batch| Made::Batch {
            batch,
            indices,
            samples: all,
        }))
    }

    /// A batch without samples, of the kind of those with this one.
    pub(super) fn empty(&self, job: &Job, sample: S, index: usize) -> Result<B> {
        let mut batch = self.collate(vec![sample], &[index])?;
        let removed = batch.remove_samples();
        removed.map_err(|reason| self.refused(&[index], reason.into()))?;
        self.checks.check(&batch, &[], &self.name, job.is_first)?;
        Ok(batch)
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

/// A job and what was made of it.
pub(super) struct Done<B> {
    pub(super) job: Job,
    pub(super) made: Result<Made<B>>,
    /// The batch's tensors, where they are on their way to a device.
    pub(super) load: Option<Box<dyn Load>>,
    pub(super) bytes: u64,
}

impl<B: Tensors> Done<B> {
    /// Makes a batch, and copies it to where the device can fetch it.
    pub(super) fn make(
        mut job: Job,
        produce: &dyn Produce<B>,
        stage: &Stage,
        is_stopped: &dyn Fn() -> bool,
    ) -> Self {
        let (mut load, mut bytes) = (None, 0);
        let failed = job.failed.take();
        let made = caught(|| {
            if let Some(failed) = failed {
                return Err(failed);
            }
            let mut made = produce.make(&job, is_stopped)?;
            if let Made::Batch { batch, .. } = &mut made {
                bytes = tensors::bytes(batch);
                load = stage.pin(batch);
            }
            Ok(made)
        });
        let panicked = |message| invalid!(Data, "a loader's worker panicked: {message}");
        let made = made.unwrap_or_else(|message| Err(panicked(message)));
        Self {
            job,
            made,
            load,
            bytes,
        }
    }

    /// Begins to copy the batch to the device. If that fails, it is tried again when the batch is delivered.
    pub(super) fn depart(&mut self) {
        if let Some(Err(error)) = self.load.as_mut().map(|load| load.depart()) {
            tracing::debug!(%error, "a batch is not copied ahead");
        }
    }

    /// Puts the batch on the device. After an error it can be tried again.
    pub(super) fn deliver(&mut self, stage: &Stage) -> Result<()> {
        match &mut self.made {
            Ok(Made::Batch { batch, .. }) => stage.deliver(batch, &mut self.load),
            _ => Ok(()),
        }
    }
}
