//! What the training thread does: takes the next batch, puts it on the device, sends the one after it on its way, and counts how long it waited. A
//! batch whose transfer failed is held, and tried again with the next call.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;

use super::Loader;
use super::produce::Made;
use super::queue::Done;
use crate::batch::Place;
use crate::data::{Loaded, Tensors};
use crate::error::{Result, invalid};

impl<B: Tensors + Send + 'static> Loader<B> {
    /// Returns an iterator over the epochs from the current one on, each of which is an iterator over its batches, for two nested loops.
    ///
    /// The first epoch has the batches that are left of it, none if it was read to its end before the run was saved. An epoch that is
    /// left early is also the next item, with the batches that are left, so that no sample is skipped.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::data::{Items, Loader};
    /// use candle_headroom::error::BoxedError;
    ///
    /// let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut loader = Loader::builder(Items(vec![5, 6, 7]), collate).batch(2).epochs(3).build()?;
    /// for epoch in loader.epochs() {
    ///     println!("epoch {}", epoch.number()); // 0, 1, 2
    ///     for batch in epoch {
    ///         let _tokens = batch?.into_inner(); // [2], then [1]
    ///     }
    /// }
    /// assert_eq!(loader.stats().batches, 6);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn epochs(&mut self) -> Epochs<'_, B> {
        Epochs {
            loader: Arc::new(Mutex::new(self)),
        }
    }

    fn start(&mut self) -> Result<()> {
        self.began.get_or_insert_with(Instant::now);
        if self.has_started {
            return Ok(());
        }
        for number in 0..self.queue.ahead.workers {
            let queue = Arc::clone(&self.queue);
            let thread = thread::Builder::new().name(format!("{}-{number}", self.reader.name));
            match thread.spawn(move || queue.work()) {
                Ok(_) => self.has_started = true,
                Err(error) if self.has_started => {
                    tracing::warn!(%error, "a loader has fewer workers than asked for");
                    break;
                }
                Err(error) => {
                    return Err(invalid!(Data, "cannot start a loader's thread: {error}"));
                }
            }
        }
        Ok(())
    }

    /// The next batch; `None` at the end of epoch `until`, or of all.
    fn advance(&mut self, until: Option<u64>) -> Option<Result<Loaded<B>>> {
        if let Err(error) = self.start() {
            return Some(Err(error));
        }
        self.follow_division();
        let began = Instant::now();
        loop {
            if until.is_some_and(|epoch| self.next.0 > epoch) {
                return None;
            }
            let taken = match self.held.take() {
                Some(done) => Some(done),
                None => self.queue.take(self.has_started),
            };
            let Some(mut done) = taken else {
                self.end();
                return None;
            };
            if let Err(error) = done.deliver(&self.queue.stage) {
                self.held = Some(done);
                return Some(Err(error));
            }
            self.queue.hand_out(&done);
            let Done { job, made, .. } = done;
            self.next = job.next;
            let batch = match made {
                Ok(Made::Batch(batch)) => Some(batch),
                Ok(Made::Skipped) => None,
                Ok(Made::EndOfEpoch) => {
                    self.next = (job.epoch + 1, 0, 0);
                    self.position.go_to(self.next);
                    continue;
                }
                Ok(Made::Stopped) => return None,
                Err(error) => return Some(Err(error)),
            };
            self.position.go_to(job.next);
            self.position.samples += job.samples as u64;
            let Some(batch) = batch else { continue };
            let waited = began.elapsed();
            if self.queue.stage.copies_ahead() {
                self.held = self.queue.take_ready();
            }
            if let Some(next) = &mut self.held {
                next.depart();
            }
            self.stats.batches += 1;
            self.stats.samples += job.indices.len() as u64;
            self.stats.waited += waited;
            let begin = std::mem::replace(&mut self.begin, Place::new(job.next));
            return Some(Ok(Loaded {
                is_empty: job.indices.is_empty(),
                batch,
                indices: job.indices,
                epoch: job.epoch,
                waited,
                reader: Arc::clone(&self.reader),
                position: self.position.clone(),
                places: [begin, job.place],
                samples: job.samples,
            }));
        }
    }
}

impl<B> Loader<B> {
    /// Nothing is left. The position shows it also if the last batch failed.
    fn end(&mut self) {
        self.position.go_to((self.next.0, 0, 0));
    }
}

impl<B: Tensors + Send + 'static> Iterator for Loader<B> {
    type Item = Result<Loaded<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(None)
    }
}

/// The epochs of a loader; from [`Loader::epochs`].
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use candle_headroom::data::{Items, Loader};
/// # use candle_headroom::error::BoxedError;
/// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
/// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).epochs(2).build()?;
/// let mut batches = Vec::new();
/// for epoch in loader.epochs() {
///     batches.push((epoch.number(), epoch.count()));
/// }
/// assert_eq!(batches, [(0, 3), (1, 3)]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub struct Epochs<'a, B> {
    loader: Arc<Mutex<&'a mut Loader<B>>>,
}

impl<'a, B> Iterator for Epochs<'a, B> {
    type Item = Epoch<'a, B>;

    fn next(&mut self) -> Option<Epoch<'a, B>> {
        let mut loader = self.loader.lock();
        let number = loader.next.0;
        if loader.epochs.is_some_and(|epochs| number >= epochs) {
            loader.end();
            return None;
        }
        Some(Epoch {
            loader: Arc::clone(&self.loader),
            number,
        })
    }
}

/// The batches of one epoch; from [`Loader::epochs`].
///
/// An epoch that is left early comes again, with the batches that are left of it:
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use candle_headroom::data::{Items, Loader};
/// # use candle_headroom::error::BoxedError;
/// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
/// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
/// let mut epochs = loader.epochs();
/// let mut left = epochs.next().expect("an epoch");
/// assert_eq!(left.next().expect("a batch")?.indices, [0, 1, 2, 3]);
/// let again = epochs.next().expect("the same epoch");
/// assert_eq!((again.number(), again.count()), (0, 2));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub struct Epoch<'a, B> {
    loader: Arc<Mutex<&'a mut Loader<B>>>,
    number: u64,
}

impl<B> Epoch<'_, B> {
    /// Returns the number of the epoch, counted from 0.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<B: Tensors + Send + 'static> Iterator for Epoch<'_, B> {
    type Item = Result<Loaded<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.loader.lock().advance(Some(self.number))
    }
}

impl<B> fmt::Debug for Epochs<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Epoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut epoch = f.debug_struct("Epoch");
        epoch.field("number", &self.number).finish_non_exhaustive()
    }
}
