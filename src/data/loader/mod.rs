//! Reads samples ahead of training, in an order that does not depend on the threads that read them.

mod builder;
mod dataset;
mod hand_out;
mod jobs;
mod produce;
mod queue;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

pub use builder::{LoaderBuilder, Source, Stream};
pub use hand_out::{Epoch, Epochs};

use super::loaded::Reader;
use super::{Position, Tensors};
use crate::batch::{Consumer, Division, Fingerprint, Place};
use crate::error::{DataError, Result, invalid};

use jobs::Jobs;
use produce::{Produce, Skipped};
use queue::{Ahead, Done, Queue};

/// Hands out the batches of a dataset, which worker threads read ahead, and knows how far it has been read.
///
/// It is an iterator over the batches of all epochs; [`epochs`](Self::epochs) gives one iterator for each epoch. The samples of each batch are a function of the
/// dataset's length, the seed and the settings of batches: neither the number of workers nor that of ranks changes them, and no list of
/// the order is kept.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::data::{Items, Loader};
/// use candle_headroom::error::BoxedError;
///
/// let numbers: Vec<f32> = (0..10).map(|number| number as f32).collect();
/// let collate = |samples: Vec<f32>| -> Result<Tensor, BoxedError> {
///     Ok(Tensor::new(samples, &Device::Cpu)?)
/// };
/// let mut loader = Loader::builder(Items(numbers), collate).batch(4).shuffle(7).epochs(2).workers(2).build()?;
/// let mut sums = Vec::new();
/// for epoch in loader.epochs() {
///     let mut sum = 0.;
///     for batch in epoch {
///         sum += batch?.sum_all()?.to_scalar::<f32>()?;
///     }
///     sums.push(sum);
/// }
/// assert_eq!(sums, [45., 45.]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Resuming
/// [`state`](Self::state) is a few numbers, which serialize with serde, and [`load_state`](Self::load_state) goes on from there. A
/// trainer that is given the [`Loaded`](super::Loaded) batches remembers the position of the last batch that an update has consumed and saves it with
/// its state; [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume) goes there, as [`resume`](Self::resume) does for a trainer whose
/// state was loaded otherwise. If that is forgotten, the trainer's next step is an error.
///
/// # Ranks
/// Of several processes, each builds the same loader with the [group](LoaderBuilder::group) and gets its part of each batch, equal
/// ones unless [`divide`](Self::divide) says otherwise. A trainer with a group compares the loaders of all ranks before each update.
///
/// # Errors
/// An item is a [`DataError`] if a sample cannot be read, and another error of data
/// ([`is_data`](crate::Error::is_data)) if a batch cannot be made. The iterator then goes on with the next batch;
/// the position stays before the failed one until that is handed out, or until the end. An error of copying a batch to its
/// [device](LoaderBuilder::device) is of its own class, and the same batch comes again.
pub struct Loader<B> {
    reader: Arc<Reader>,
    /// After the last batch that was handed out.
    position: Position,
    /// Windows of batches in an epoch.
    windows: usize,
    /// Where the next batch that is handed out begins, whatever is skipped before it.
    begin: Place,
    /// The place of the batch that comes next, also after one that failed: epoch, window, place in the window.
    next: (u64, usize, usize),
    ranks: usize,
    /// The number of epochs; `None` for an endless loader.
    epochs: Option<u64>,
    queue: Arc<Queue<B>>,
    /// The next batch, if it was taken from the queue before it was asked for.
    held: Option<Done<B>>,
    has_started: bool,
    skipped: Skipped,
    stats: LoaderStats,
    began: Option<Instant>,
}

impl<B: Tensors + Send + 'static> Loader<B> {
    fn new(
        (reader, data): (Reader, Fingerprint),
        jobs: Jobs,
        produce: Box<dyn Produce<B>>,
        skipped: Skipped,
        ahead: Ahead,
    ) -> Result<Self> {
        let (ranks, windows, epochs) = (jobs.rank.1, jobs.windows(), jobs.epochs);
        let queue = Queue::new(jobs, produce, ahead)?;
        Ok(Self {
            position: Position::new(data),
            begin: Place::default(),
            reader: Arc::new(reader),
            windows,
            next: (0, 0, 0),
            ranks,
            epochs,
            queue,
            held: None,
            has_started: false,
            skipped,
            stats: LoaderStats::default(),
            began: None,
        })
    }

    /// Returns its [name](LoaderBuilder::name), which tells it from a run's other loaders.
    pub fn name(&self) -> &str {
        &self.reader.name
    }

    /// Returns the position after the last batch that was handed out.
    ///
    /// Batches that were read ahead do not count:
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
    /// loader.next().expect("a batch")?;
    /// assert_eq!((loader.state().epoch, loader.state().samples), (0, 4));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn state(&self) -> &Position {
        &self.position
    }

    /// Goes to a position, forwards or backwards. Batches that were read ahead are dropped.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let loader = || Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build();
    /// let mut first = loader()?;
    /// first.next().expect("a batch")?;
    /// let saved = first.state().clone();
    ///
    /// let mut second = loader()?; // in another run
    /// second.load_state(&saved)?;
    /// assert_eq!(second.next().expect("a batch")?.indices, [4, 5, 6, 7]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::Position`] if the position is that of a loader with another order or other batches. Nothing changes then.
    pub fn load_state(&mut self, position: &Position) -> Result<()> {
        Ok(self.continue_at(position, false).map(drop)?)
    }

    /// Goes to a saved position. Returns what has changed since, if that is accepted.
    fn continue_at(&mut self, saved: &Position, accepts: bool) -> Result<Vec<String>, DataError> {
        let changes = self.position.differences(saved);
        let position = match changes.is_empty() {
            true => Some(saved.clone()),
            false => (self.position.translated(saved, self.windows)).filter(|_| accepts),
        };
        let Some(position) = position else {
            return Err(DataError::Position(format!(
                "the saved position does not fit loader `{}`: {}; build the loader as the run did that saved it, or with \
                 `.accept_changed_data()`",
                self.reader.name,
                changes.join(", ")
            )));
        };
        self.begin = position.place();
        self.next = (position.epoch, position.window, position.batch);
        self.position = position;
        let division = self.position.division.take();
        let division = division.filter(|division| division.ranks() == self.ranks);
        self.reader.division.set(division.as_ref());
        self.restart(division);
        Ok(changes)
    }

    /// Divides its batches among the ranks like this, from the next batch on; batches that were read ahead are read again. The division is part of
    /// the [position](Self::state), so a resumed run divides its batches in the same way. A trainer's
    /// [`measured_shares`](crate::train::AdaptiveTrainerBuilder::measured_shares) calls it by itself.
    ///
    /// All ranks have to set the same division between the same two batches, or samples are lost or come twice. Trainers compare it before each
    /// update.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::batch::Division;
    /// use candle_headroom::data::{Items, Loader};
    /// use candle_headroom::error::BoxedError;
    ///
    /// let loader = |rank| {
    ///     let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    ///     Loader::builder(Items(Vec::from_iter(0..30)), collate).batch(6).rank(rank, 2).build()
    /// };
    /// let mut ranks = [loader(0)?, loader(1)?]; // as a rule in two processes
    /// for rank in &mut ranks {
    ///     assert_eq!(rank.next().unwrap()?.indices.len(), 3);
    ///     rank.divide(&Division::weighted([2, 1])?)?;
    /// }
    /// let parts = ranks.map(|mut rank| rank.next().unwrap().unwrap().indices);
    /// assert_eq!(parts, [vec![6, 7, 8, 9], vec![10, 11]]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) for a division among another number of ranks. Nothing changes then.
    pub fn divide(&mut self, division: &Division) -> Result<()> {
        let (name, ranks, found) = (self.name(), self.ranks, division.ranks());
        if found != ranks {
            return Err(invalid!(
                Data,
                "loader `{name}` has {ranks} ranks, a division is among {found}"
            ));
        }
        self.reader.division.set(Some(division));
        self.follow_division();
        Ok(())
    }

    /// Divides the next batches as it was last asked to, maybe by a trainer.
    fn follow_division(&mut self) {
        let division = self.reader.division.get();
        if division != self.position.division {
            self.restart(division);
        }
    }

    /// Reads from the next batch on, divided so. What was read ahead is dropped.
    fn restart(&mut self, division: Option<Division>) {
        self.held = None;
        let parts = division.clone();
        let parts = parts.unwrap_or_else(|| Division::equal(self.ranks));
        self.queue.move_to(self.next, parts);
        self.position.division = division;
    }

    /// Goes to the position after the last batch that an update of this trainer has consumed. If there was none, it goes to its beginning and
    /// returns `None`. [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume) calls it for a run's loader; call it for further
    /// loaders of the run, and after a trainer's state was loaded otherwise.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let collate = |samples: Vec<f32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// # let w = Var::ones(1, DType::F32, &Device::Cpu)?;
    /// # let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![("w", w.clone())]).build()?).build()?;
    /// let loader = || Loader::builder(Items(vec![1f32; 12]), collate).batch(4).build();
    /// let mut first = loader()?;
    /// trainer.step(first.next().expect("a batch"), |x, _| x.broadcast_mul(&w)?.mean_all())?;
    ///
    /// let mut second = loader()?; // as in another process, after the trainer's state was loaded
    /// assert!(second.resume(&trainer)?.is_some());
    /// assert_eq!(second.next().expect("a batch")?.indices, [4, 5, 6, 7]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`load_state`](Self::load_state), unless [`accept_changed_data`](LoaderBuilder::accept_changed_data) was called; and
    /// [`DataError::Position`] if nothing is saved under this loader's name, while no loader has continued one that was saved.
    pub fn resume(&mut self, trainer: &(impl Consumer + ?Sized)) -> Result<Option<Continued>> {
        let name = &self.reader.name;
        let Some(saved) = trainer.position(name) else {
            let saved = trainer.unclaimed();
            if !saved.is_empty() && !self.reader.accepts_changes {
                return Err(DataError::renamed(name, &saved).into());
            }
            // Also if it stands there: its first batch may have failed.
            let beginning = Position::new(self.position.data.clone());
            self.continue_at(&beginning, false)?;
            return Ok(None);
        };
        let changes = self.continue_at(saved, self.reader.accepts_changes)?;
        if !changes.is_empty() {
            let loader = self.name();
            tracing::warn!(loader, ?changes, "a run continues with changed data");
        }
        trainer.claim(self.name(), &self.position);
        Ok(Some(Continued { changes }))
    }

    /// Returns counts of batches and samples so far, and how long the caller waited for data.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
    /// for batch in loader.by_ref() {
    ///     batch?;
    /// }
    /// let stats = loader.stats();
    /// assert_eq!((stats.batches, stats.samples, stats.skipped), (3, 10, 0));
    /// println!("{:.0} % of the time waited for data", 100. * stats.wait_share());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn stats(&self) -> LoaderStats {
        let (ready, ready_bytes) = self.queue.ready();
        LoaderStats {
            skipped: self.skipped.load(Relaxed),
            elapsed: self.began.map(|began| began.elapsed()).unwrap_or_default(),
            ready: ready + usize::from(self.held.is_some()),
            ready_bytes,
            ..self.stats
        }
    }
}

/// Where a loader continues a saved run; from [`Loader::resume`].
///
/// ```
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::data::{Items, Loader};
/// # use candle_headroom::error::BoxedError;
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let collate = |samples: Vec<f32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
/// # let w = Var::ones(1, DType::F32, &Device::Cpu)?;
/// # let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![("w", w.clone())]).build()?).build()?;
/// let mut loader = Loader::builder(Items(vec![1f32; 12]), collate).batch(4).build()?;
/// assert_eq!(loader.resume(&trainer)?, None); // no update has consumed a batch
/// trainer.step(loader.next().expect("a batch"), |x, _| x.broadcast_mul(&w)?.mean_all())?;
/// let continued = loader.resume(&trainer)?.expect("a position");
/// assert!(continued.changes.is_empty());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Continued {
    /// What has changed since the run was saved, each with both values; empty if the loader continues exactly where it stopped. Changes are
    /// an error unless [`accept_changed_data`](LoaderBuilder::accept_changed_data) was called.
    pub changes: Vec<String>,
}

impl<B> Drop for Loader<B> {
    /// Ends the threads without waiting for them: each ends when it has read the sample in its hands.
    fn drop(&mut self) {
        self.queue.stop();
    }
}

impl<B> fmt::Debug for Loader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("name", &self.reader.name)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Counts and times of a loader so far; from [`Loader::stats`](super::Loader::stats).
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use candle_headroom::data::{Items, Loader};
/// # use candle_headroom::error::BoxedError;
/// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
/// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
/// loader.next().expect("a batch")?;
/// let stats = loader.stats();
/// assert_eq!((stats.batches, stats.samples), (1, 4));
/// assert!(stats.waited <= stats.elapsed);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoaderStats {
    /// Batches handed out.
    pub batches: u64,
    /// Samples in them, of this rank.
    pub samples: u64,
    /// Samples that were skipped because they could not be read.
    pub skipped: usize,
    /// How long the caller waited for them.
    pub waited: Duration,
    /// The time from the first batch's request to now.
    pub elapsed: Duration,
    /// Batches that are ready now.
    pub ready: usize,
    /// Their bytes.
    pub ready_bytes: u64,
}

impl LoaderStats {
    /// Returns the part of the time that the caller spent waiting for data, from 0 to 1.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::data::LoaderStats;
    ///
    /// let mut stats = LoaderStats::default();
    /// (stats.waited, stats.elapsed) = (Duration::from_secs(1), Duration::from_secs(4));
    /// assert_eq!(stats.wait_share(), 0.25);
    /// ```
    pub fn wait_share(&self) -> f64 {
        match self.elapsed.as_secs_f64() {
            0. => 0.,
            elapsed => (self.waited.as_secs_f64() / elapsed).min(1.),
        }
    }
}
