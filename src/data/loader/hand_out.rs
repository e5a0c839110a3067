use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::Loader;
use super::produce::{Done, Made};
use crate::batch::Place;
use crate::data::{Loaded, Tensors};
use crate::error::{DataError, Result};

impl<B: Tensors + Send + 'static> Loader<B> {
    /// Returns an iterator over the rest of the present epoch.
    pub fn epoch(&mut self) -> Epoch<'_, B> {
        Epoch {
            number: self.next.0,
            loader: self,
        }
    }

    fn start(&mut self) -> Result<(), DataError> {
        self.began.get_or_insert_with(Instant::now);
        if self.has_started {
            return Ok(());
        }
        for number in 0..self.workers {
            let queue = Arc::clone(&self.queue);
            let thread = thread::Builder::new().name(format!("{}-{number}", self.reader.name));
            match thread.spawn(move || queue.work()) {
                Ok(_) => self.has_started = true,
                Err(error) if self.has_started => {
                    tracing::warn!(%error, "a loader has fewer workers than asked for");
                    break;
                }
                Err(error) => return Err(DataError::Thread(error.to_string())),
            }
        }
        Ok(())
    }

    /// The next batch; `None` at the end of epoch `until`, or of all.
    fn advance(&mut self, until: Option<u64>) -> Option<Result<Loaded<B>>> {
        if let Err(error) = self.start() {
            return Some(Err(error.into()));
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
                // Also if the last batch failed, so that the end can be seen.
                self.position.go_to((self.next.0, 0, 0));
                return None;
            };
            if let Err(error) = done.deliver(&self.stage) {
                self.held = Some(done);
                return Some(Err(error));
            }
            self.queue.hand_out(&done);
            let Done { job, made, .. } = done;
            self.next = job.next;
            let (batch, indices, samples) = match made {
                Ok(Made::Batch {
                    batch,
                    indices,
                    samples,
                }) => (batch, indices, samples),
                Ok(Made::Skipped(samples)) => {
                    self.position.go_to(job.next);
                    self.position.samples += samples as u64;
                    continue;
                }
                Ok(Made::EndOfEpoch) => {
                    self.next = (job.epoch + 1, 0, 0);
                    self.position.go_to(self.next);
                    continue;
                }
                Ok(Made::Stopped) => return None,
                Err(error) => return Some(Err(error.into())),
            };
            self.position.go_to(job.next);
            self.position.samples += samples as u64;
            let waited = began.elapsed();
            if self.stage.copies_ahead() {
                self.held = self.queue.take_ready();
            }
            if let Some(next) = &mut self.held {
                next.depart();
            }
            self.stats.batches += 1;
            self.stats.samples += indices.len() as u64;
            self.stats.waited += waited;
            let begin = std::mem::replace(&mut self.begin, Place::new(job.next));
            return Some(Ok(Loaded {
                is_empty: indices.is_empty(),
                batch,
                indices,
                epoch: job.epoch,
                waited,
                reader: Arc::clone(&self.reader),
                position: self.position.clone(),
                places: [begin, job.place],
                samples,
            }));
        }
    }
}

impl<B: Tensors + Send + 'static> Iterator for Loader<B> {
    type Item = Result<Loaded<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(None)
    }
}

/// The batches of one epoch; from [`Loader::epoch`].
#[derive(Debug)]
pub struct Epoch<'a, B> {
    loader: &'a mut Loader<B>,
    number: u64,
}

impl<B: Tensors + Send + 'static> Iterator for Epoch<'_, B> {
    type Item = Result<Loaded<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.loader.advance(Some(self.number))
    }
}
