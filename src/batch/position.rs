//! Where a loader stands, and whether its batches are still those of the run that saved the position: every difference is named with both
//! values. How a batch is divided among ranks is a pure function of its size and the weights, so that all ranks agree without a message.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, invalid};

const VERSION: u32 = 3;

/// How far a loader has been read: a few numbers, however long the dataset is. Batches that were read ahead do not count.
///
/// It serializes with serde. It does not depend on the numbers of workers and ranks, so a run may continue with others. Among another number of
/// ranks, batches are divided equally.
///
/// ```
/// # #[cfg(feature = "data")] {
/// use candle_core::{Device, Tensor};
/// use candle_headroom::data::{Items, Loader};
/// use candle_headroom::error::BoxedError;
///
/// let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
///     Ok(Tensor::new(samples, &Device::Cpu)?)
/// };
/// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
/// loader.next().expect("a batch")?;
/// let position = loader.state();
/// assert_eq!((position.epoch, position.samples), (0, 4));
/// # }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    // Other versions may have other fields. They are read, so that the error can name the version.
    version: u32,
    /// What decides which samples are in which batch.
    pub data: Fingerprint,
    /// The epoch of the next batch, counted from 0.
    pub epoch: u64,
    /// The next batch: its window in the epoch, and its place in the window.
    pub(crate) window: usize,
    pub(crate) batch: usize,
    /// Samples in all batches so far, of all ranks.
    pub samples: u64,
    /// How batches are divided among the ranks, if that was ever set; otherwise equally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) division: Option<Division>,
}

/// The largest number in a position, which no run comes near.
const MOST: u64 = 1 << 53;

impl Position {
    pub(crate) fn new(data: Fingerprint) -> Self {
        Self {
            version: VERSION,
            data,
            epoch: 0,
            window: 0,
            batch: 0,
            samples: 0,
            division: None,
        }
    }

    /// Where the next batch is.
    pub(crate) fn place(&self) -> Place {
        Place::new((self.epoch, self.window, self.batch))
    }

    /// The next batch is at this epoch, window, and place in the window.
    pub(crate) fn go_to(&mut self, next: (u64, usize, usize)) {
        (self.epoch, self.window, self.batch) = next;
    }

    /// The numbers that no run comes near, with which places could not be counted.
    fn impossible(&self) -> impl Iterator<Item = String> {
        let numbers = [
            ("epoch", self.epoch),
            ("window", self.window as u64),
            ("batch", self.batch as u64),
            ("samples", self.samples),
        ];
        let impossible = numbers.into_iter().filter(|(_, number)| *number > MOST);
        impossible.map(|(what, number)| format!("{what}: saved {number}, at most 2^53 is possible"))
    }

    /// How `saved` differs from a position of the same batches, each with both values.
    pub(crate) fn differences(&self, saved: &Self) -> Vec<String> {
        let (theirs, here) = (saved.version, self.version);
        let version = (theirs != here).then(|| format!("version: saved {theirs}, here {here}"));
        let data = saved.data.differences(&self.data);
        let data = data.map(|(what, saved, here)| format!("{what}: saved {saved}, here {here}"));
        let all = version.into_iter().chain(data).chain(saved.impossible());
        all.collect()
    }

    /// Where the same number of samples of the epoch is read, in `windows` windows of other batches: at the beginning of a window, or of the
    /// next epoch. `None` for a position of another version, or an
    /// impossible one.
    pub(crate) fn translated(&self, saved: &Self, windows: usize) -> Option<Self> {
        let window = saved.window.saturating_mul(saved.data.window) / self.data.window.max(1);
        let next = match window < windows {
            true => (saved.epoch, window, 0),
            false => (saved.epoch.saturating_add(1), 0, 0),
        };
        let mut translated = Self {
            data: self.data.clone(),
            ..saved.clone()
        };
        translated.go_to(next);
        let is_possible = saved.impossible().next().is_none();
        (saved.version == self.version && is_possible).then_some(translated)
    }
}

/// Where a batch comes in the order of a loader; places compare as the batches come. They are the same on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place(u64, usize, usize);

impl Place {
    /// The place of a batch of a loader: its epoch, its window in the epoch, and its place in the window.
    pub(crate) fn new((epoch, window, batch): (u64, usize, usize)) -> Self {
        Self(epoch, window, batch)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(epoch, window, batch) = self;
        write!(f, "batch {batch} of window {window} of epoch {epoch}")
    }
}

/// The longest name of a dataset, because a saved position is to stay short.
const LONGEST: usize = 40;

/// What decides which samples are in which batch of a loader. Loaders with equal fingerprints have the same batches.
///
/// It is saved with a loader's position, and ranks compare it before each update.
///
/// ```
/// # #[cfg(feature = "data")] {
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::Fingerprint;
/// use candle_headroom::data::{Items, Loader};
/// use candle_headroom::error::BoxedError;
///
/// let fingerprint = |seed| -> candle_headroom::Result<Fingerprint> {
///     let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
///         Ok(Tensor::new(samples, &Device::Cpu)?)
///     };
///     let builder = Loader::builder(Items(Vec::from_iter(0..10)), collate);
///     Ok(builder.batch(4).shuffle(seed).build()?.state().data.clone())
/// };
/// assert_eq!(fingerprint(7)?, fingerprint(7)?);
/// assert_ne!(fingerprint(7)?, fingerprint(8)?);
/// # }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Fingerprint {
    /// The dataset's name, without folders, because the same files may lie elsewhere; a long one is shortened.
    pub dataset: String,
    /// Number of samples in the dataset; `None` for a stream.
    pub len: Option<usize>,
    /// The order of the samples, with its seed.
    pub order: String,
    /// The size of the batches, and how they are cut.
    pub batches: String,
    /// Number of samples of which batches are formed at a time.
    pub window: usize,
}

impl Fingerprint {
    pub(crate) fn new(
        dataset: &str,
        len: Option<usize>,
        order: String,
        (batches, window): (String, usize),
    ) -> Self {
        let names = dataset.split(' ').map(|name| {
            let mut folders = name.rsplit(['/', '\\']);
            folders.find(|name| !name.is_empty()).unwrap_or(name)
        });
        let mut dataset = names.collect::<Vec<_>>().join(" ");
        if dataset.chars().count() > LONGEST {
            let hash = crc32fast::hash(dataset.as_bytes());
            let begin: String = dataset.chars().take(LONGEST - 10).collect();
            dataset = format!("{begin}…{hash:08x}");
        }
        Self {
            dataset,
            len,
            order,
            batches,
            window,
        }
    }

    /// What differs: its name, the value here, and the other's.
    pub(crate) fn differences(
        &self,
        other: &Self,
    ) -> impl Iterator<Item = (&'static str, String, String)> {
        let pairs = self.texts().into_iter().zip(other.texts());
        pairs
            .filter(|((_, here), (_, other))| here != other)
            .map(|((what, here), (_, other))| (what, here, other))
    }

    fn texts(&self) -> [(&'static str, String); 4] {
        let len = self.len.map_or("unknown".to_owned(), |len| len.to_string());
        [
            ("dataset", format!("`{}`", self.dataset)),
            ("samples in the dataset", len),
            ("order", self.order.clone()),
            ("batches", format!("{} in {}", self.batches, self.window)),
        ]
    }
}

/// Where a batch comes from. A trainer remembers the position of the last batch that an update consumed, and saves it.
///
/// ```
/// # #[cfg(feature = "data")] {
/// use candle_core::{Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::data::{Items, Loader};
/// use candle_headroom::error::BoxedError;
///
/// let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
///     Ok(Tensor::new(samples, &Device::Cpu)?)
/// };
/// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
/// let batch = loader.next().expect("a batch")?;
/// let origins = batch.origins();
/// assert_eq!((origins[0].loader, origins[0].samples), (loader.name(), 4));
/// # }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The loader's name.
    pub loader: &'a str,
    /// The loader's position after this batch.
    pub position: &'a Position,
    /// The rank for which the loader reads, and the number of ranks; `None` for a rank with data of its own.
    pub rank: Option<(usize, usize)>,
    /// Whether a trainer may continue here although its saved run stopped elsewhere.
    pub accepts_changes: bool,
    /// The place where the loader stood before: that of this batch, unless batches between them could not be read.
    pub(crate) begin: Place,
    /// The place of this batch.
    pub(crate) place: Place,
    /// Number of samples in the batch, of all ranks, those that were skipped included.
    pub samples: usize,
    /// How long the caller waited for the batch.
    pub waited: Duration,
    /// How the loader divides its next batches among the ranks.
    pub(crate) division: &'a SharedDivision,
}

/// A trainer that knows which batches its updates have consumed.
///
/// ```
/// # #[cfg(feature = "data")] {
/// # use candle_core::{Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let w = Var::new(&[0f32], &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![w.clone()]).build()?;
/// use candle_headroom::batch::Consumer;
/// use candle_headroom::data::{Items, Loader};
/// use candle_headroom::error::BoxedError;
///
/// let collate = |samples: Vec<f32>| -> Result<Tensor, BoxedError> {
///     Ok(Tensor::new(samples, &Device::Cpu)?)
/// };
/// let mut loader = Loader::builder(Items(vec![1., 3., 5., 7.]), collate).batch(2).build()?;
/// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// assert!(trainer.position(loader.name()).is_none());
/// let batch = loader.next().expect("a batch");
/// trainer.step(batch, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
/// let position = trainer.position(loader.name()).expect("a batch was consumed");
/// assert_eq!(position.samples, 2);
/// # }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Consumer {
    /// Returns the position of the loader of this name after the last batch that an update consumed; `None` if there was none.
    fn position(&self, loader: &str) -> Option<&Position>;

    /// Returns the names of loaders that the saved run read, after state was loaded, as long as no loader has continued there.
    fn unclaimed(&self) -> Vec<String>;

    /// Marks that a loader of this name continues at this position, so that its next batch has to begin there.
    fn claim(&self, loader: &str, at: &Position);
}

/// How long the caller waited for all of them; `None` if nothing comes from a loader.
pub(crate) fn waited(origins: &[Origin<'_>]) -> Option<Duration> {
    let waits = origins.iter().map(|origin| origin.waited);
    waits.reduce(|a, b| a.saturating_add(b))
}

/// The largest sum of weights, so that products with numbers of samples cannot overflow.
const MOST_WEIGHT: usize = usize::MAX >> 8;

/// How the samples of each batch are divided among ranks: in equal parts, or in proportion to whole weights.
///
/// Each rank has a run of the batch's samples, in the order of the ranks. The parts always add up to the batch, and a batch with at
/// least as many samples as ranks leaves no rank without one. A batch of as many samples as the sum of the weights is divided exactly
/// by them. It serializes as the list of its weights.
///
/// ```
/// use candle_headroom::batch::Division;
///
/// assert_eq!(Division::equal(2).parts(9), [0..4, 4..9]);
/// let division = Division::weighted([2, 1])?;
/// assert_eq!(division.parts(9), [0..6, 6..9]);
/// assert_eq!(division.parts(2), [0..1, 1..2]);
/// assert_eq!(division.parts(1), [0..1, 1..1]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Division {
    ranks: usize,
    /// `None` for equal parts. They are not all equal, their sum is from 1 to `MOST_WEIGHT`.
    weights: Option<Arc<[usize]>>,
}

impl Division {
    /// Divides each batch equally: of `m` samples, rank `r` of `n` has those from `m * r / n` to `m * (r + 1) / n`.
    ///
    /// ```
    /// use candle_headroom::batch::Division;
    ///
    /// assert_eq!(Division::equal(4).parts(10), [0..2, 2..5, 5..7, 7..10]);
    /// ```
    pub fn equal(ranks: usize) -> Self {
        Self {
            ranks: ranks.max(1),
            weights: None,
        }
    }

    /// Divides each batch in proportion to these weights, one for each rank. Equal weights are the same as
    /// [`equal`](Self::equal) parts.
    ///
    /// ```
    /// use candle_headroom::batch::Division;
    ///
    /// let division = Division::weighted([3, 1])?;
    /// assert_eq!((division.ranks(), division.is_equal()), (2, false));
    /// assert_eq!(Division::weighted([2, 2])?, Division::equal(2));
    /// assert!(Division::weighted([0, 0]).unwrap_err().is_data());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// An [error of data](Error::is_data) if there are no weights, if all are 0, or if their sum is too large.
    pub fn weighted(weights: impl Into<Vec<usize>>) -> Result<Self> {
        Self::try_from(weights.into())
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns whether all ranks have equal parts.
    pub fn is_equal(&self) -> bool {
        self.weights.is_none()
    }

    /// Returns the part of one rank in a batch of this many samples; none for a rank that does not exist.
    ///
    /// ```
    /// use candle_headroom::batch::Division;
    ///
    /// let division = Division::weighted([3, 1])?;
    /// assert_eq!(division.part(0, 8), 0..6);
    /// assert_eq!(division.part(1, 8), 6..8);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn part(&self, rank: usize, samples: usize) -> Range<usize> {
        match &self.weights {
            None => self.cut(rank, samples)..self.cut(rank.saturating_add(1), samples),
            Some(weights) => {
                let part = weighted(weights, samples).nth(rank);
                part.unwrap_or(samples..samples)
            }
        }
    }

    /// Returns the parts of all ranks in a batch of this many samples.
    ///
    /// ```
    /// use candle_headroom::batch::Division;
    ///
    /// assert_eq!(Division::weighted([3, 1])?.parts(8), [0..6, 6..8]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn parts(&self, samples: usize) -> Vec<Range<usize>> {
        match &self.weights {
            None => (0..self.ranks)
                .map(|rank| self.part(rank, samples))
                .collect(),
            Some(weights) => weighted(weights, samples).collect(),
        }
    }

    /// Where the equal part of a rank begins.
    fn cut(&self, rank: usize, samples: usize) -> usize {
        (samples as u128 * rank.min(self.ranks) as u128 / self.ranks as u128) as usize
    }
}

/// The division of a loader's next batches, which a trainer sets while the loader reads ahead; `None` until it was ever set.
#[derive(Debug, Default)]
pub(crate) struct SharedDivision(Mutex<Option<Division>>);

impl SharedDivision {
    pub(crate) fn get(&self) -> Option<Division> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, division: Option<&Division>) {
        *self.0.lock() = division.cloned();
    }
}

/// The parts between the rounded sums of the weights, moved so that no rank is left without a sample if there are enough.
fn weighted(weights: &[usize], samples: usize) -> impl Iterator<Item = Range<usize>> {
    let ranks = weights.len();
    let total: u128 = weights.iter().map(|weight| *weight as u128).sum();
    let least = usize::from(samples >= ranks);
    let (mut sum, mut start) = (0, 0);
    weights.iter().enumerate().map(move |(rank, weight)| {
        sum += *weight as u128;
        let end = (2 * sum * samples as u128 + total) / (2 * total);
        let after = least * (ranks - 1 - rank);
        let end = (end as usize).max(start + least).min(samples - after);
        std::mem::replace(&mut start, end)..end
    })
}

impl TryFrom<Vec<usize>> for Division {
    type Error = Error;

    fn try_from(weights: Vec<usize>) -> Result<Self> {
        let sum = weights
            .iter()
            .try_fold(0_usize, |sum, weight| sum.checked_add(*weight));
        if !sum.is_some_and(|sum| (1..=MOST_WEIGHT).contains(&sum)) {
            return Err(invalid!(
                Data,
                "a division among ranks needs a weight for each rank, with a sum from 1 to {MOST_WEIGHT}, got {weights:?}"
            ));
        }
        let is_equal = weights.windows(2).all(|pair| pair.first() == pair.last());
        Ok(Self {
            ranks: weights.len(),
            weights: (!is_equal).then(|| weights.into()),
        })
    }
}

impl From<Division> for Vec<usize> {
    fn from(division: Division) -> Self {
        match division.weights {
            None => vec![1; division.ranks],
            Some(weights) => weights.to_vec(),
        }
    }
}
