use std::sync::Arc;

use super::Loader;
use super::builder::LoaderBuilder;
use super::jobs::{Job, Jobs, Plan, SPARES};
use super::produce::{Made, Maker, Produce};
use crate::data::dataset::without_samples;
use crate::data::order::{ByBlocks, Order, Size};
use crate::data::{Dataset, Tensors};
use crate::error::{Result, invalid};

impl<D: Dataset + 'static, B: Tensors + Send + 'static> LoaderBuilder<D, B> {
    /// Makes batches whose [costs](Dataset::cost) add up to at most this, for sequences that are packed. A sample that costs more is a
    /// batch of its own. Batches are formed among 1,024 samples at a time, or as many as [`sort_by_cost`](Self::sort_by_cost) says. If one of these
    /// costs fails, also after the [retries](Self::retries), no batch of these samples is known: the error takes the place of all of them.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Loader, TokenWindow, Tokens};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |documents: Vec<TokenWindow>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(documents.len() as u32, &Device::Cpu)?) };
    /// // Documents that end with 0, of 3, 2, 4 and 2 tokens.
    /// let documents = Tokens::from_vec(vec![7, 8, 0, 5, 0, 6, 6, 6, 0, 1, 0]).documents(0).open()?;
    /// let mut batches = Vec::new();
    /// for batch in Loader::builder(documents, collate).batch_cost(5).build()? {
    ///     batches.push(batch?.indices);
    /// }
    /// assert_eq!(batches, [vec![0, 1], vec![2], vec![3]]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn batch_cost(mut self, most: usize) -> Self {
        self.batching.size = Size::Cost(most);
        self
    }

    /// Makes batches whose number of samples times their largest [cost](Dataset::cost) is at most this, for sequences that are padded. Otherwise as
    /// [`batch_cost`](Self::batch_cost).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Loader, TokenWindow, Tokens};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |documents: Vec<TokenWindow>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(documents.len() as u32, &Device::Cpu)?) };
    /// // Documents that end with 0, of 3, 2, 4 and 2 tokens.
    /// let documents = Tokens::from_vec(vec![7, 8, 0, 5, 0, 6, 6, 6, 0, 1, 0]).documents(0).open()?;
    /// let mut batches = Vec::new();
    /// for batch in Loader::builder(documents, collate).batch_padded_cost(8).build()? {
    ///     batches.push(batch?.indices);
    /// }
    /// assert_eq!(batches, [[0, 1], [2, 3]]); // padded to 2 × 3 and 2 × 4 tokens
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn batch_padded_cost(mut self, most: usize) -> Self {
        self.batching.size = Size::PaddedCost(most);
        self
    }

    /// Puts samples of similar [cost](Dataset::cost) into one batch: `window` samples at a time are sorted by cost before they are cut
    /// into batches. With [`shuffle`](Self::shuffle) the batches of a window then come in a shuffled order. A larger window pads less and mixes
    /// less. With [`batch`](Self::batch) it is rounded up to a multiple of the batch.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Loader, TokenWindow, Tokens};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |documents: Vec<TokenWindow>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(documents.len() as u32, &Device::Cpu)?) };
    /// // Documents that end with 0, of 3, 2, 4 and 2 tokens.
    /// let documents = Tokens::from_vec(vec![7, 8, 0, 5, 0, 6, 6, 6, 0, 1, 0]).documents(0).open()?;
    /// let mut batches = Vec::new();
    /// for batch in Loader::builder(documents, collate).batch(2).sort_by_cost(4).build()? {
    ///     batches.push(batch?.indices);
    /// }
    /// assert_eq!(batches, [[1, 3], [0, 2]]); // of 2 and 2, and of 3 and 4 tokens
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn sort_by_cost(mut self, window: usize) -> Self {
        self.batching.sorted = Some(window);
        self
    }

    /// Shuffles by blocks, for datasets that are read faster in parts than sample by sample, such as files larger than memory: the dataset's
    /// [blocks](Dataset::blocks) come in a shuffled order, and the samples of `window` blocks after one another are shuffled together. It needs
    /// [`shuffle`](Self::shuffle), or a [`mixture`](Self::mixture), whose parts are then shuffled so each by itself.
    ///
    /// The order is still a function of seed, epoch and place: it does not depend on workers and ranks, and a saved position continues exactly. A
    /// larger window mixes better, and more has to be cached: of Parquet files the decoded row groups of a
    /// window. Up to 10 MiB are taken for the places of the blocks.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Concat, Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// // Four files of three samples, of which two are read at a time.
    /// let files = Concat::new((0..4).map(|file| Items(vec![file; 3])).collect());
    /// let mut loader = Loader::builder(files, collate).batch(6).shuffle(7).blocks(2).build()?;
    /// let mut drawn = loader.next().expect("a batch")?.to_vec1::<u32>()?;
    /// drawn.sort_unstable();
    /// drawn.dedup();
    /// assert_eq!(drawn.len(), 2); // from two of the files
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn blocks(mut self, window: usize) -> Self {
        self.blocks = Some(window);
        self
    }

    /// Leaves out the last batch of an epoch if it has fewer samples than [`batch`](Self::batch) says.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).drop_last().build()?;
    /// assert_eq!(loader.count(), 2); // 2 samples are left out
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn drop_last(mut self) -> Self {
        self.batching.drops_last = true;
        self
    }

    /// Draws the samples of an epoch from the dataset's [parts](Dataset::parts) in proportion to these weights, in a shuffled order; the seed is
    /// that of [`shuffle`](Self::shuffle), or 0. A part is drawn from without replacement until all its samples have come, then again in a new
    /// order, also across epochs: at the end of each epoch its samples have been drawn equally often, give or take one. See
    /// [`Concat`](crate::data::Concat). Any 1,024 places of an epoch have about the same shares.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Concat, Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let parts = Concat::new(vec![Items(vec![1; 100]), Items(vec![2; 10])]);
    /// let mut loader = Loader::builder(parts, collate).batch(8).mixture([3., 1.]).samples(8).build()?;
    /// let mut drawn = loader.next().expect("a batch")?.to_vec1::<u32>()?;
    /// drawn.sort_unstable();
    /// assert_eq!(drawn, [1, 1, 1, 1, 1, 1, 2, 2]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn mixture(mut self, weights: impl Into<Vec<f64>>) -> Self {
        self.mixture = Some(weights.into());
        self
    }

    /// Sets the number of samples in an epoch of a [mixture](Self::mixture); by default the dataset's. Without a mixture it is an error of
    /// `build`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Concat, Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let parts = Concat::new(vec![Items(vec![1; 100]), Items(vec![2; 10])]);
    /// let loader = Loader::builder(parts, collate).batch(10).mixture([1., 1.]).samples(40).build()?;
    /// assert_eq!(loader.count(), 4); // 11 batches without `samples`
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn samples(mut self, samples: usize) -> Self {
        self.samples = Some(samples);
        self
    }

    /// Builds the loader. It reads nothing before the first batch is asked for.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let error = Loader::builder(Items(Vec::new()), collate).batch(4).build().unwrap_err();
    /// assert!(error.is_data());
    /// assert!(error.to_string().ends_with(" has no samples"));
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data):
    /// - the dataset is empty, or too small for one batch with [`drop_last`](Self::drop_last);
    /// - a number of samples, a cost or [`ahead`](Self::ahead) is 0 or too large, or there are more than 4,096 [`workers`](Self::workers);
    /// - the [`name`](Self::name) is empty or contains NUL;
    /// - the rank is not below the number of ranks, or [`own_data`](Self::own_data) is combined with a group of several ranks;
    /// - [`blocks`](Self::blocks) is set without [`shuffle`](Self::shuffle), or the dataset's blocks do not add up to it;
    /// - the weights of a [`mixture`](Self::mixture) are not one for each of the dataset's parts, are negative or all 0, give a part too little
    ///   for one sample, or belong to a part without samples; or [`samples`](Self::samples) is set without a mixture.
    ///
    /// Any error of the driver of [`device`](Self::device).
    pub fn build(mut self) -> Result<Loader<B>> {
        self.validate()?;
        let dataset = &self.source;
        let len = dataset.len();
        let blocks = self
            .blocks
            .map(|window| ByBlocks::new(dataset.blocks(), window, len));
        let blocks = blocks.transpose()?;
        let (order, text) = match &self.mixture {
            Some(weights) => {
                let (samples, seed) = (self.samples.unwrap_or(len), self.seed.unwrap_or(0));
                Order::mixed(samples, seed, &dataset.parts(), weights, blocks.as_ref())?
            }
            None => Order::new(len, self.seed, blocks.as_ref()),
        };
        if self.batching.windows(order.len()) == 0 {
            if len == 0 {
                return Err(without_samples(&dataset.name()));
            }
            return Err(invalid!(
                Data,
                "{} has {} samples, too few for one batch, and `drop_last` leaves them out",
                dataset.name(),
                order.len()
            ));
        }
        self.maker.name = dataset.name();
        let reader = self.reader(&self.maker.name, Some(len), text);
        let skipped = Arc::clone(&self.maker.skipped);
        let (dataset, maker) = (Arc::new(self.source), Arc::new(self.maker));
        let (costs, asked) = (Arc::clone(&dataset), Arc::clone(&maker));
        let cost = move |index| asked.read_again(index, || costs.cost(index));
        let plan = Plan::Dataset {
            order,
            batching: self.batching,
            cost: Box::new(cost),
        };
        let produce = FromDataset { dataset, maker };
        let jobs = Jobs::new(plan, self.rank, self.epochs);
        Loader::new(reader, jobs, Box::new(produce), skipped, self.ahead)
    }
}

/// Reads samples of a dataset.
struct FromDataset<D: Dataset, B> {
    dataset: Arc<D>,
    maker: Arc<Maker<D::Sample, B>>,
}

impl<D: Dataset, B: Tensors> Produce<B> for FromDataset<D, B> {
    fn make(&self, job: &mut Job, is_stopped: &dyn Fn() -> bool) -> Result<Made<B>> {
        let mut samples = Vec::with_capacity(job.indices.len());
        for index in std::mem::take(&mut job.indices) {
            if is_stopped() {
                return Ok(Made::Stopped);
            }
            match self.sample(index) {
                Ok(sample) => {
                    samples.push(sample);
                    job.indices.push(index);
                }
                Err(failed) => self.maker.skip(failed)?,
            }
        }
        let job = &*job;
        let empty = || self.empty(job, is_stopped);
        self.maker.batch(job, samples, empty)
    }
}

impl<D: Dataset, B: Tensors> FromDataset<D, B> {
    /// A batch without samples, made of the first one of other ranks that can be read, or of one from elsewhere in the dataset.
    fn empty(&self, job: &Job, is_stopped: &dyn Fn() -> bool) -> Result<Option<B>> {
        let mut failed = None;
        let len = self.dataset.len();
        let elsewhere = (0..len).step_by((len / SPARES).max(1));
        for index in job.spares.iter().copied().chain(elsewhere) {
            if is_stopped() {
                return Ok(None);
            }
            let made = self.sample(index);
            match made.and_then(|sample| self.maker.empty(job, sample, index)) {
                Ok(batch) => return Ok(Some(batch)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| without_samples(&self.maker.name)))
    }

    fn sample(&self, index: usize) -> Result<D::Sample> {
        self.maker.read_again(index, || self.dataset.get(index))
    }
}
