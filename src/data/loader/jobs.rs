use crate::batch::{Division, Place};
use crate::data::order::{Batching, Order};
use crate::error::{Error, Result, invalid};

/// How many samples of others may stand in for a rank's own.
pub(super) const SPARES: usize = 8;

/// The samples of one batch.
#[derive(Debug)]
pub(super) struct Job {
    /// Of the loader's jobs, and of its moves before.
    pub(super) number: u64,
    pub(super) generation: u64,
    /// The indices of this rank's samples, of which those that were skipped are removed; of a stream, empty until they are read.
    pub(super) indices: Vec<usize>,
    /// The first indices of all ranks' samples, to make an empty batch of.
    pub(super) spares: Vec<usize>,
    /// How the samples are divided among the ranks.
    pub(super) division: Division,
    /// Samples of all ranks; of a stream, at most so many until they are read.
    pub(super) samples: usize,
    pub(super) epoch: u64,
    pub(super) window: usize,
    pub(super) place: Place,
    /// Whether it is the first since the loader was built or moved.
    pub(super) is_first: bool,
    /// Where the next batch is: epoch, window, place in the window.
    pub(super) next: (u64, usize, usize),
    /// Why its samples are not known.
    pub(super) failed: Option<Error>,
}

/// Says which samples are in which batch.
pub(super) enum Plan {
    Dataset {
        order: Order,
        batching: Batching,
        cost: Box<dyn Fn(usize) -> Result<usize> + Send + Sync>,
    },
    /// Batches of so many samples; only reading shows where the epoch ends.
    Stream(usize),
}

/// Gives the jobs one after the other.
pub(super) struct Jobs {
    pub(super) plan: Plan,
    /// This rank, and how many there are.
    pub(super) rank: (usize, usize),
    division: Division,
    pub(super) epochs: Option<u64>,
    next: (u64, usize, usize),
    /// The batches of the window of `next`, once they are known.
    window: Option<Vec<Vec<usize>>>,
    is_first: bool,
}

impl Jobs {
    pub(super) fn new(plan: Plan, rank: (usize, usize), epochs: Option<u64>) -> Self {
        Self {
            plan,
            rank,
            division: Division::equal(rank.1),
            epochs,
            next: (0, 0, 0),
            window: None,
            is_first: true,
        }
    }

    /// The number of windows in an epoch; of a stream, more than it can have.
    pub(super) fn windows(&self) -> usize {
        match &self.plan {
            Plan::Dataset {
                order, batching, ..
            } => batching.windows(order.len()),
            Plan::Stream(_) => usize::MAX,
        }
    }

    /// Goes on from here, with batches that are divided so.
    pub(super) fn move_to(&mut self, next: (u64, usize, usize), division: Division) {
        self.go_to(next);
        (self.division, self.is_first) = (division, true);
    }

    pub(super) fn go_to(&mut self, next: (u64, usize, usize)) {
        (self.next, self.window) = (next, None);
    }

    /// The next job; `None` after the last epoch.
    pub(super) fn next(&mut self) -> Option<Job> {
        let (epoch, window, place) = self.next;
        if self.epochs.is_some_and(|epochs| epoch >= epochs) {
            return None;
        }
        let (rank, ranks) = self.rank;
        let mut job = Job {
            number: 0,
            generation: 0,
            indices: Vec::new(),
            spares: Vec::new(),
            division: self.division.clone(),
            samples: 0,
            epoch,
            window,
            place: Place::new(self.next),
            is_first: std::mem::take(&mut self.is_first),
            next: (epoch, window + 1, 0),
            failed: None,
        };
        match &self.plan {
            Plan::Stream(samples) => job.samples = *samples,
            Plan::Dataset {
                order,
                batching,
                cost,
            } => {
                let batches = match self.window.take() {
                    Some(batches) => Ok(batches),
                    None => batching.batches(order, cost, epoch, window),
                };
                let (batches, failed) = match batches {
                    Ok(batches) => (batches, None),
                    Err(error) => (Vec::new(), Some(error)),
                };
                // A saved place is in its window unless samples have other costs now.
                job.failed = failed.or_else(|| match place < batches.len() {
                    true => None,
                    false => Some(invalid!(
                        Data,
                        "window {window} of epoch {epoch} has {} batches, not one at {place}: samples have other costs than in \
                         the run that saved the position",
                        batches.len()
                    )),
                });
                let batch = batches.get(place).map_or(&[][..], Vec::as_slice);
                let part = job.division.part(rank, batch.len());
                job.indices = batch.get(part).unwrap_or_default().to_vec();
                if ranks > 1 {
                    job.spares = batch.iter().take(SPARES).copied().collect();
                }
                job.samples = batch.len();
                job.next = match place + 1 < batches.len() {
                    true => (epoch, window, place + 1),
                    false if window + 1 < batching.windows(order.len()) => (epoch, window + 1, 0),
                    false => (epoch + 1, 0, 0),
                };
                self.window = (job.next.2 > 0).then_some(batches);
            }
        }
        self.next = job.next;
        Some(job)
    }
}
