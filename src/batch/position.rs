//! Where a loader stands, and whether its batches are still those of the run that saved the position: every difference is named with both
//! values.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::division::{Division, SharedDivision};

const VERSION: u32 = 3;

/// How far a loader has been read: a few numbers, however long the dataset is. Batches that were read ahead do not count.
///
/// It serializes with serde. It does not depend on the numbers of workers and ranks, so a run may continue with others. Among another number of
/// ranks, batches are divided equally.
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
        let version = (
            "version",
            saved.version.to_string(),
            self.version.to_string(),
        );
        let version = (saved.version != self.version).then_some(version);
        let differences = version
            .into_iter()
            .chain(saved.data.differences(&self.data));
        differences
            .map(|(what, saved, here)| format!("{what}: saved {saved}, here {here}"))
            .chain(saved.impossible())
            .collect()
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
