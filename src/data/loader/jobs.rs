use std::ops::Range;

use crate::data::Position;
use crate::data::batching::Batching;
use crate::data::caught::caught;
use crate::data::order::Order;
use crate::error::DataError;

/// The samples of one batch.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// The indices of this rank's samples; empty for a stream.
    pub(super) indices: Vec<usize>,
    /// Samples of all ranks.
    pub(super) samples: usize,
    pub(super) epoch: u64,
    pub(super) window: usize,
    /// Whether it is the first since the loader was built or moved.
    pub(super) is_first: bool,
    /// Where the next batch is: epoch, window, place in the window.
    pub(super) next: (u64, usize, usize),
    /// Why its samples are not known.
    pub(super) failed: Option<DataError>,
}

/// This rank, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rank(pub(super) usize, pub(super) usize);

impl Rank {
    /// Its share of so many samples.
    pub(super) fn share(self, samples: usize) -> Range<usize> {
        let Self(rank, ranks) = self;
        let at = |rank: usize| (samples as u128 * rank as u128 / ranks.max(1) as u128) as usize;
        at(rank)..at(rank + 1)
    }
}

/// Says which samples are in which batch.
pub(super) enum Plan {
    Dataset {
        order: Order,
        batching: Batching,
        cost: Box<dyn Fn(usize) -> usize + Send + Sync>,
    },
    /// Batches of so many samples; only reading shows where the epoch ends.
    Stream(usize),
}

/// Gives the jobs one after the other.
pub(super) struct Jobs {
    pub(super) plan: Plan,
    pub(super) rank: Rank,
    pub(super) epochs: Option<u64>,
    next: (u64, usize, usize),
    /// The batches of the window of `next`, once they are known.
    window: Option<Vec<Vec<usize>>>,
    is_first: bool,
}

impl Jobs {
    pub(super) fn new(plan: Plan, rank: Rank, epochs: Option<u64>) -> Self {
        Self {
            plan,
            rank,
            epochs,
            next: (0, 0, 0),
            window: None,
            is_first: true,
        }
    }

    /// Goes on from a position.
    pub(super) fn move_to(&mut self, position: &Position) {
        self.go_to((position.epoch, position.window, position.batch));
        self.is_first = true;
    }

    fn go_to(&mut self, next: (u64, usize, usize)) {
        (self.next, self.window) = (next, None);
    }

    /// A stream's epoch has ended.
    pub(super) fn end_epoch(&mut self, epoch: u64) {
        self.go_to((epoch + 1, 0, 0));
    }

    /// The next job; `None` after the last epoch.
    pub(super) fn next(&mut self) -> Option<Job> {
        let (epoch, window, place) = self.next;
        if self.epochs.is_some_and(|epochs| epoch >= epochs) {
            return None;
        }
        let job = match &self.plan {
            Plan::Stream(samples) => Job {
                samples: *samples,
                next: (epoch, window + 1, 0),
                ..Job::default()
            },
            Plan::Dataset {
                order,
                batching,
                cost,
            } => {
                let batches = match self.window.take() {
                    Some(batches) => Ok(batches),
                    None => caught(|| batching.batches(order, cost, epoch, window)),
                };
                let panicked = |message: &String| {
                    let problem = "the cost of a sample cannot be asked for: it panicked";
                    DataError::Setting(format!("{problem}: {message}"))
                };
                let failed = batches.as_ref().err().map(panicked);
                let batches = batches.unwrap_or_default();
                // A saved place is in its window unless samples have other costs now.
                let failed = failed.or_else(|| match place < batches.len() {
                    true => None,
                    false => Some(DataError::Setting(format!(
                        "window {window} of epoch {epoch} has {} batches, not one at {place}: samples have other costs than in \
                         the run that saved the position",
                        batches.len()
                    ))),
                });
                let batch = batches.get(place).map_or(&[][..], Vec::as_slice);
                let share = batch.get(self.rank.share(batch.len())).unwrap_or_default();
                let next = match place + 1 < batches.len() {
                    true => (epoch, window, place + 1),
                    false if window + 1 < batching.windows(order.len()) => (epoch, window + 1, 0),
                    false => (epoch + 1, 0, 0),
                };
                let job = Job {
                    indices: share.to_vec(),
                    samples: batch.len(),
                    next,
                    failed,
                    ..Job::default()
                };
                self.window = (next.2 > 0).then_some(batches);
                job
            }
        };
        self.next = job.next;
        let is_first = std::mem::take(&mut self.is_first);
        Some(Job {
            epoch,
            window,
            is_first,
            ..job
        })
    }
}
