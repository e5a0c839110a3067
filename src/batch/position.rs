use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::division::Division;
use super::fingerprint::Fingerprint;

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
    #[serde(serialize_with = "serialize", deserialize_with = "deserialize")]
    pub data: Arc<Fingerprint>,
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
            data: Arc::new(data),
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
            data: Arc::clone(&self.data),
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

// As the feature `rc` of serde would do it.
fn serialize<S: Serializer>(data: &Arc<Fingerprint>, serializer: S) -> Result<S::Ok, S::Error> {
    data.as_ref().serialize(serializer)
}

fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Fingerprint>, D::Error> {
    Fingerprint::deserialize(deserializer).map(Arc::new)
}
