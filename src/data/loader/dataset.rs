use std::sync::Arc;

use super::Loader;
use super::builder::LoaderBuilder;
use super::failing::Failing;
use super::jobs::{Job, Jobs, Plan, Rank, SPARES};
use super::produce::{Finish, Made, Produce};
use crate::data::batching::Size;
use crate::data::caught::caught;
use crate::data::order::Order;
use crate::data::{Dataset, Tensors};
use crate::error::{BoxedError, DataError, Result};

impl<D: Dataset + 'static, B: Tensors + Send + 'static> LoaderBuilder<D, B> {
    /// Makes batches whose [costs](Dataset::cost) add up to at most this, for sequences that are packed. A sample that costs more is a
    /// batch of its own. Batches are formed among 1,024 samples at a time, or as many as [`sort_by_cost`](Self::sort_by_cost) says.
    pub fn batch_cost(mut self, most: usize) -> Self {
        self.batching.size = Size::Cost(most);
        self
    }

    /// As [`batch_cost`](Self::batch_cost), where each sample counts as the largest of its batch, for sequences that are padded.
    pub fn batch_padded_cost(mut self, most: usize) -> Self {
        self.batching.size = Size::PaddedCost(most);
        self
    }

    /// Puts samples of similar [cost](Dataset::cost) into one batch: `window` samples at a time are sorted by cost before they are cut
    /// into batches, which then come in an order of their own. A larger window pads less and mixes less.
    pub fn sort_by_cost(mut self, window: usize) -> Self {
        self.batching.sorted = Some(window);
        self
    }

    /// Leaves out the last batch of an epoch if it has fewer samples than [`batch`](Self::batch) says.
    pub fn drop_last(mut self) -> Self {
        self.batching.drops_last = true;
        self
    }

    /// Draws the samples of an epoch from the dataset's [parts](Dataset::parts) in proportion to these weights, mixed. At the end of each
    /// epoch, the samples of a part have been drawn equally often, give or take one. See [`Concat`](crate::data::Concat).
    pub fn mixture(mut self, weights: impl Into<Vec<f64>>) -> Self {
        self.mixture = Some(weights.into());
        self
    }

    /// Sets the number of samples in an epoch of a [mixture](Self::mixture); by default the dataset's.
    pub fn samples(mut self, samples: usize) -> Self {
        self.samples = Some(samples);
        self
    }

    /// Builds the loader. It reads nothing before the first batch is asked for.
    ///
    /// # Errors
    /// [`DataError`]: an empty dataset, a size of 0 or too large a one, a rank that is not below the number of ranks, or weights that do
    /// not fit the dataset's parts. Any error of the driver of [`device`](Self::device).
    pub fn build(self) -> Result<Loader<B>> {
        self.validate()?;
        let dataset = &self.source;
        let len = dataset.len();
        let (order, text) = match &self.mixture {
            Some(weights) => {
                let samples = self.samples.unwrap_or(len);
                Order::mixed(samples, self.seed.unwrap_or(0), &dataset.parts(), weights)?
            }
            None => Order::new(len, self.seed),
        };
        if self.batching.windows(order.len()) == 0 {
            if len == 0 {
                return Err(DataError::Empty(dataset.name()).into());
            }
            let problem = format!(
                "{} has {} samples, too few for one batch, and `drop_last` leaves them out",
                dataset.name(),
                order.len()
            );
            return Err(DataError::Setting(problem).into());
        }
        let reader = self.reader(&dataset.name(), Some(len), text);
        let dataset = Arc::new(self.source);
        let costs = Arc::clone(&dataset);
        let plan = Plan::Dataset {
            order,
            batching: self.batching,
            cost: Box::new(move |index| costs.cost(index)),
        };
        let skipped = Arc::clone(&self.failing.skipped);
        let produce = FromDataset {
            dataset,
            finish: Finish {
                collate: self.collate,
                checks: self.checks,
            },
            failing: self.failing,
        };
        let jobs = Jobs::new(plan, Rank(self.rank.0, self.rank.1), self.epochs);
        Loader::new(
            reader,
            jobs,
            Box::new(produce),
            skipped,
            self.workers,
            self.ahead,
        )
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
        if samples.is_empty() {
            // Other ranks may have samples of it, so all take part.
            return match job.division.ranks() {
                1 => Ok(Made::Skipped(job.samples)),
                _ => self.empty(job, is_stopped),
            };
        }
        let name = || self.dataset.name();
        Ok(Made::Batch {
            batch: self.finish.finish(samples, &indices, job.is_first, name)?,
            indices,
            samples: job.samples,
        })
    }
}

impl<D: Dataset, B: Tensors> FromDataset<D, B> {
    /// A batch without samples, made of the first one of other ranks that can be read, or of one from elsewhere in the dataset.
    fn empty(&self, job: &Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>, DataError> {
        let mut failed = None;
        let len = self.dataset.len();
        let elsewhere = (0..len).step_by((len / SPARES).max(1));
        for index in job.spares.iter().copied().chain(elsewhere) {
            if is_stopped() {
                return Ok(Made::Stopped);
            }
            let name = || self.dataset.name();
            let made = self.sample(index);
            match made.and_then(|sample| self.finish.empty(sample, index, job.is_first, name)) {
                Ok(batch) => {
                    return Ok(Made::Batch {
                        batch,
                        indices: Vec::new(),
                        samples: job.samples,
                    });
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| DataError::Empty(self.dataset.name())))
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
