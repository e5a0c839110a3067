use std::sync::Arc;

use parking_lot::Mutex;

use super::Loader;
use super::builder::LoaderBuilder;
use super::failing::Failing;
use super::jobs::{Job, Jobs, Plan, Rank};
use super::produce::{Finish, Made, Produce};
use super::source::Stream;
use crate::data::batching::Size;
use crate::data::caught::caught;
use crate::data::{Position, Tensors};
use crate::error::{BoxedError, DataError, Result};
use crate::nn::mix;

impl<S, I, F, B> LoaderBuilder<Stream<F>, B>
where
    S: Send + 'static,
    I: Iterator<Item = Result<S, BoxedError>> + Send + 'static,
    F: Fn(u64) -> Result<I, BoxedError> + Send + Sync + 'static,
    B: Tensors + Send + 'static,
{
    /// Shuffles within a buffer of so many samples: each sample that is handed out is drawn from the buffer by the seed of
    /// [`shuffle`](Self::shuffle), and the next of the stream takes its place. The buffer's memory does not count as read ahead.
    pub fn buffer(mut self, samples: usize) -> Self {
        self.buffer = Some(samples);
        self
    }

    /// Builds the loader. It reads nothing before the first batch is asked for.
    ///
    /// # Errors
    /// [`DataError`]: a size of 0 or too large a one, a rank that is not below the number of ranks, or settings that need a dataset. Any error
    /// of the driver of [`device`](Self::device).
    pub fn build(self) -> Result<Loader<B>> {
        self.validate()?;
        let Size::Samples(samples) = self.batching.size else {
            return Err(DataError::Setting("a stream has batches of samples".to_owned()).into());
        };
        let order = match (self.seed, self.buffer) {
            (Some(seed), Some(buffer)) => format!("shuffled by {seed} within {buffer}"),
            (None, None) => "as it comes".to_owned(),
            _ => {
                let problem =
                    "a stream is shuffled by `shuffle` and `buffer` together: call both or none";
                return Err(DataError::Setting(problem.to_owned()).into());
            }
        };
        let position = Position::new(None, order, self.batching.text());
        let rank = Rank(self.rank.0, self.rank.1);
        let skipped = Arc::clone(&self.failing.skipped);
        let produce = FromStream {
            name: self.name.clone(),
            open: self.source.0,
            finish: Finish {
                collate: self.collate,
                checks: self.checks,
            },
            failing: self.failing,
            rank: self.rank.0,
            shuffle: self.seed.zip(self.buffer),
            reading: Mutex::new(None),
            gave_up: Mutex::new(None),
        };
        let jobs = Jobs::new(Plan::Stream(samples), rank, self.epochs);
        // More workers would read out of order.
        let workers = self.workers.min(1);
        Loader::new(
            self.name,
            position,
            jobs,
            Box::new(produce),
            skipped,
            workers,
            self.ahead,
        )
    }
}

/// Reads samples of a stream.
struct FromStream<F, I, S, B> {
    name: String,
    open: F,
    finish: Finish<S, B>,
    failing: Failing,
    rank: usize,
    /// Seed and size of the buffer.
    shuffle: Option<(u64, usize)>,
    reading: Mutex<Option<Reading<I, S>>>,
    /// An epoch that could not be begun.
    gave_up: Mutex<Option<u64>>,
}

/// An epoch in the course of being read.
struct Reading<I, S> {
    epoch: u64,
    items: I,
    /// Samples taken from the stream, and those drawn from the buffer.
    taken: usize,
    drawn: usize,
    /// With their numbers in the stream.
    buffer: Vec<(usize, S)>,
    has_ended: bool,
}

impl<S, I, F, B> Produce<B> for FromStream<F, I, S, B>
where
    S: Send,
    I: Iterator<Item = Result<S, BoxedError>> + Send,
    F: Fn(u64) -> Result<I, BoxedError> + Send + Sync,
    B: Tensors,
{
    fn make(&self, job: &Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>, DataError> {
        // The error was returned before.
        if self.gave_up.lock().take() == Some(job.epoch) {
            return Ok(Made::EndOfEpoch);
        }
        let mut reading = self.reading.lock();
        let first = job.window.saturating_mul(job.samples);
        let of_epoch = reading
            .take()
            .filter(|reading| reading.epoch == job.epoch && reading.drawn <= first);
        let reading = reading.insert(match of_epoch {
            Some(reading) => reading,
            None => self.open(job.epoch)?,
        });
        if reading.drawn < first {
            let (loader, skipped) = (&self.name, first - reading.drawn);
            tracing::info!(
                loader,
                skipped,
                "reading the stream again up to its position"
            );
        }
        let mut samples = Vec::new();
        while reading.drawn < first.saturating_add(job.samples) {
            if is_stopped() {
                return Ok(Made::Stopped);
            }
            let is_of_batch = reading.drawn >= first;
            match self.draw(reading, is_stopped)? {
                Some(sample) if is_of_batch => samples.push(sample),
                Some(_) => {}
                None => break,
            }
        }
        match samples.len() {
            0 if is_stopped() => Ok(Made::Stopped),
            0 if reading.drawn == 0 => {
                *self.gave_up.lock() = Some(job.epoch);
                Err(DataError::Empty(self.name.clone()))
            }
            0 => Ok(Made::EndOfEpoch),
            all => {
                let name = || self.name.clone();
                let part = job.division.part(self.rank, all);
                // Of an empty part, the sample that another rank has there, or the last one.
                let from = part.start.min(all - 1);
                let mut own = samples.into_iter().skip(from).take(part.len().max(1));
                let (indices, batch) = match own.next() {
                    Some((index, sample)) if part.is_empty() => {
                        let batch = self.finish.empty(sample, index, job.is_first, name)?;
                        (Vec::new(), batch)
                    }
                    first => {
                        let (indices, samples): (Vec<_>, Vec<_>) =
                            first.into_iter().chain(own).unzip();
                        let batch = self.finish.finish(samples, &indices, job.is_first, name)?;
                        (indices, batch)
                    }
                };
                Ok(Made::Batch {
                    batch,
                    indices,
                    samples: all,
                })
            }
        }
    }
}

impl<S, I, F, B> FromStream<F, I, S, B>
where
    I: Iterator<Item = Result<S, BoxedError>>,
    F: Fn(u64) -> Result<I, BoxedError>,
{
    fn open(&self, epoch: u64) -> Result<Reading<I, S>, DataError> {
        let mut tries = 0;
        let items = loop {
            let failed = match caught(|| (self.open)(epoch)) {
                Ok(Ok(items)) => break items,
                Ok(Err(_)) if tries < self.failing.retries => {
                    tries += 1;
                    continue;
                }
                Ok(Err(reason)) => self.unread(0, reason),
                Err(message) => self.panicked(0, message),
            };
            *self.gave_up.lock() = Some(epoch);
            return Err(failed);
        };
        Ok(Reading {
            epoch,
            items,
            taken: 0,
            drawn: 0,
            buffer: Vec::new(),
            has_ended: false,
        })
    }

    /// The next sample and its number in the stream.
    fn draw(
        &self,
        reading: &mut Reading<I, S>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(usize, S)>, DataError> {
        let size = self.shuffle.map_or(1, |(_, size)| size);
        while reading.buffer.len() < size && !reading.has_ended {
            if is_stopped() {
                return Ok(None);
            }
            let number = reading.taken;
            reading.taken += 1;
            let failed = match caught(|| reading.items.next()) {
                Ok(Some(Ok(sample))) => {
                    reading.buffer.push((number, sample));
                    continue;
                }
                Ok(None) => {
                    reading.has_ended = true;
                    continue;
                }
                Ok(Some(Err(reason))) => self.unread(number, reason),
                Err(message) => self.panicked(number, message),
            };
            self.failing.skip(failed)?;
        }
        let Some(last) = reading.buffer.len().checked_sub(1) else {
            return Ok(None);
        };
        let slot = match self.shuffle {
            Some((seed, _)) => {
                let chance = mix(seed ^ mix(reading.epoch ^ mix(reading.drawn as u64)));
                (chance % (last as u64 + 1)) as usize
            }
            None => 0,
        };
        reading.drawn += 1;
        Ok(Some(reading.buffer.swap_remove(slot)))
    }

    fn unread(&self, index: usize, reason: BoxedError) -> DataError {
        DataError::Sample {
            dataset: self.name.clone(),
            index,
            reason,
        }
    }

    fn panicked(&self, index: usize, message: String) -> DataError {
        DataError::Panicked {
            dataset: self.name.clone(),
            index,
            message,
        }
    }
}
