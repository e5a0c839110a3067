//! Loading from an iterator: one worker reads it in order, and every rank reads all of it and keeps its part.
//!
//! An item that cannot be read keeps its number, so that it shifts no other on any rank. To go on from a saved position, the items before it are read
//! again.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Loader;
use super::builder::{LoaderBuilder, Stream};
use super::jobs::{Job, Jobs, Plan, SPARES};
use super::produce::{Made, Maker, Produce};
use crate::data::dataset::without_samples;
use crate::data::order::Size;
use crate::data::{Tensors, caught};
use crate::error::{BoxedError, Result, invalid};
use crate::mix::mix;

/// How many items may be read again to find one of which an empty batch can be made.
const MOST_REREAD: usize = 1000;

impl<S, I, F, B> LoaderBuilder<Stream<F>, B>
where
    S: Send + 'static,
    I: Iterator<Item = Result<S, BoxedError>> + Send + 'static,
    F: Fn(u64) -> Result<I, BoxedError> + Send + Sync + 'static,
    B: Tensors + Send + 'static,
{
    /// Shuffles within a buffer of this many samples: each sample that is handed out is drawn from the buffer by the seed of
    /// [`shuffle`](Self::shuffle), and the next sample of the stream takes its place. A sample comes fewer than this many places early. The buffer's
    /// memory does not count as read ahead.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Loader, Stream};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let open = |_epoch: u64| Ok::<_, BoxedError>((0..100_u32).map(Ok));
    /// let mut loader = Loader::builder(Stream(open), collate).batch(100).shuffle(7).buffer(10).build()?;
    /// let drawn = loader.next().expect("a batch")?.to_vec1::<u32>()?;
    /// // None comes before it is in the buffer.
    /// assert!((0_u32..).zip(drawn).all(|(place, number)| number < place + 10));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn buffer(mut self, samples: usize) -> Self {
        self.buffer = Some(samples);
        self
    }

    /// Builds the loader. It reads nothing before the first batch is asked for.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Loader, Stream};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let open = |_epoch: u64| Ok::<_, BoxedError>((0..100_u32).map(Ok));
    /// let error = Loader::builder(Stream(open), collate).shuffle(7).build().unwrap_err();
    /// assert!(error.is_data());
    /// assert!(error.to_string().contains("`shuffle` and `buffer` together"));
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data): [`shuffle`](Self::shuffle) without [`buffer`](Self::buffer) or the other way around; a number of
    /// samples or of batches that is 0 or too large; more than 4,096 workers; a name that is empty or contains NUL; a rank that is not below the
    /// number of ranks; or [`own_data`](Self::own_data) with a group of several ranks. Any error of the driver of [`device`](Self::device).
    pub fn build(mut self) -> Result<Loader<B>> {
        self.validate()?;
        let Size::Samples(samples) = self.batching.size else {
            return Err(invalid!(Data, "a stream has batches of samples"));
        };
        let order = match (self.seed, self.buffer) {
            (Some(seed), Some(buffer)) => format!("shuffled by {seed} within {buffer}"),
            (None, None) => "as it comes".to_owned(),
            _ => {
                return Err(invalid!(
                    Data,
                    "a stream is shuffled by `shuffle` and `buffer` together: call both or none"
                ));
            }
        };
        let reader = self.reader("a stream", None, order);
        let skipped = Arc::clone(&self.maker.skipped);
        self.maker.name = self.name;
        let produce = FromStream {
            open: self.source.0,
            maker: self.maker,
            rank: self.rank.0,
            shuffle: self.seed.zip(self.buffer),
            reading: Mutex::new(None),
            spares: Mutex::default(),
            gave_up: Mutex::new(None),
        };
        let jobs = Jobs::new(Plan::Stream(samples), self.rank, self.epochs);
        // More workers would read out of order.
        self.ahead.workers = self.ahead.workers.min(1);
        Loader::new(reader, jobs, Box::new(produce), skipped, self.ahead)
    }
}

/// Reads samples of a stream.
struct FromStream<F, I, S, B> {
    open: F,
    maker: Maker<S, B>,
    rank: usize,
    /// Seed and size of the buffer.
    shuffle: Option<(u64, usize)>,
    reading: Mutex<Option<Reading<I, S>>>,
    /// Samples of other ranks, to make empty batches of.
    spares: Mutex<Vec<(usize, S)>>,
    /// The epoch and window of a job that could not begin its epoch.
    gave_up: Mutex<Option<(u64, usize)>>,
}

/// An epoch in the course of being read.
struct Reading<I, S> {
    epoch: u64,
    items: I,
    /// Items taken from the stream, and those drawn from the buffer.
    taken: usize,
    drawn: usize,
    buffer: Vec<Item<S>>,
    has_ended: bool,
}

/// An item of the stream with its number there. One that cannot be read keeps its place, so that it shifts no other, here or on another rank.
type Item<S> = (usize, Result<S>);

impl<S, I, F, B> Produce<B> for FromStream<F, I, S, B>
where
    S: Send,
    I: Iterator<Item = Result<S, BoxedError>> + Send,
    F: Fn(u64) -> Result<I, BoxedError> + Send + Sync,
    B: Tensors,
{
    fn make(&self, job: &mut Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>> {
        // The error was returned before, unless the loader has gone back since.
        let gave_up = self.gave_up.lock().take();
        if gave_up.is_some_and(|(epoch, window)| epoch == job.epoch && window < job.window) {
            return Ok(Made::EndOfEpoch);
        }
        let mut reading = self.reading.lock();
        let first = job.window.saturating_mul(job.samples);
        let of_epoch = reading
            .take()
            .filter(|reading| reading.epoch == job.epoch && reading.drawn <= first);
        let reading = reading.insert(match of_epoch {
            Some(reading) => reading,
            None => self.open(job)?,
        });
        if reading.drawn < first {
            let (loader, skipped) = (&self.maker.name, first - reading.drawn);
            tracing::info!(
                loader,
                skipped,
                "reading the stream again up to its position"
            );
        }
        let mut items = Vec::new();
        while reading.drawn < first.saturating_add(job.samples) {
            if is_stopped() {
                return Ok(Made::Stopped);
            }
            let is_of_batch = reading.drawn >= first;
            match self.draw(reading, is_stopped) {
                Some(item) if is_of_batch => items.push(item),
                Some(_) => {}
                None => break,
            }
        }
        match items.len() {
            0 if is_stopped() => Ok(Made::Stopped),
            0 if reading.drawn == 0 => {
                *self.gave_up.lock() = Some((job.epoch, job.window));
                Err(without_samples(&self.maker.name))
            }
            0 => Ok(Made::EndOfEpoch),
            _ => self.batch(job, items),
        }
    }
}

impl<S, I, F, B> FromStream<F, I, S, B>
where
    I: Iterator<Item = Result<S, BoxedError>>,
    F: Fn(u64) -> Result<I, BoxedError>,
    B: Tensors,
{
    /// Makes this rank's part of the items into a batch.
    fn batch(&self, job: &mut Job, items: Vec<Item<S>>) -> Result<Made<B>> {
        job.samples = items.len();
        let part = job.division.part(self.rank, job.samples);
        let mut samples = Vec::new();
        let mut spares = self.spares.lock();
        for (place, (index, item)) in items.into_iter().enumerate() {
            match item {
                Ok(sample) if part.contains(&place) => {
                    samples.push(sample);
                    job.indices.push(index);
                }
                Ok(sample) if spares.len() < SPARES => spares.push((index, sample)),
                Ok(_) => {}
                // Those of other ranks are theirs to read.
                Err(error) if part.contains(&place) => self.maker.skip(error)?,
                Err(_) => {}
            }
        }
        let job = &*job;
        let empty = || {
            let spare = spares.pop().or_else(|| self.spare(job.epoch));
            let none = || without_samples(&self.maker.name);
            let (index, sample) = spare.ok_or_else(none)?;
            self.maker.empty(job, sample, index).map(Some)
        };
        self.maker.batch(job, samples, empty)
    }

    /// One of the first samples of the epoch, read again.
    fn spare(&self, epoch: u64) -> Option<(usize, S)> {
        let mut items = caught(|| (self.open)(epoch)).ok()?.ok()?;
        (0..MOST_REREAD).find_map(|number| {
            let item = caught(|| items.next()).ok()??;
            item.ok().map(|sample| (number, sample))
        })
    }

    fn open(&self, job: &Job) -> Result<Reading<I, S>> {
        let epoch = job.epoch;
        let items = self.maker.read_again(0, || (self.open)(epoch));
        let items = items.inspect_err(|_| *self.gave_up.lock() = Some((epoch, job.window)))?;
        Ok(Reading {
            epoch,
            items,
            taken: 0,
            drawn: 0,
            buffer: Vec::new(),
            has_ended: false,
        })
    }

    /// The next item.
    fn draw(&self, reading: &mut Reading<I, S>, is_stopped: &dyn Fn() -> bool) -> Option<Item<S>> {
        let size = self.shuffle.map_or(1, |(_, size)| size);
        while reading.buffer.len() < size && !reading.has_ended {
            if is_stopped() {
                return None;
            }
            let items = &mut reading.items;
            let read = || items.next().transpose();
            match self.maker.read(reading.taken, read).transpose() {
                Some(item) => {
                    reading.buffer.push((reading.taken, item));
                    reading.taken += 1;
                }
                None => reading.has_ended = true,
            }
        }
        let last = reading.buffer.len().checked_sub(1)?;
        let slot = match self.shuffle {
            Some((seed, _)) => {
                let chance = mix(seed ^ mix(reading.epoch ^ mix(reading.drawn as u64)));
                (chance % (last as u64 + 1)) as usize
            }
            None => 0,
        };
        reading.drawn += 1;
        Some(reading.buffer.swap_remove(slot))
    }
}
