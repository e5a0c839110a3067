use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::divisions::Divisions;
use super::fingerprint::Fingerprint;
use super::place::Place;

const VERSION: u32 = 1;

/// How far a loader has been read: a few numbers, however long the dataset is. Batches that were read ahead do not count.
///
/// It serializes with serde. It does not depend on the numbers of workers and ranks, so a run may continue with others: batches that were
/// [divided](super::Divide) among the ranks by weights are divided equally then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
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
    /// How the batches from here on are divided among the ranks, where that is not equally.
    #[serde(default, skip_serializing_if = "Divisions::is_empty")]
    pub(crate) divisions: Divisions,
}

impl Position {
    pub(crate) fn new(data: Fingerprint) -> Self {
        Self {
            version: VERSION,
            data: Arc::new(data),
            epoch: 0,
            window: 0,
            batch: 0,
            samples: 0,
            divisions: Divisions::default(),
        }
    }

    /// Where the next batch is.
    pub(crate) fn place(&self) -> Place {
        Place::new((self.epoch, self.window, self.batch))
    }

    /// The next batch is at this epoch, window, and place in the window, and the batches from there on are divided so.
    pub(crate) fn go_to(&mut self, next: (u64, usize, usize), divisions: Divisions) {
        (self.epoch, self.window, self.batch) = next;
        self.divisions = divisions;
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
            .collect()
    }

    /// Where the same number of samples of the epoch is read, in `windows` windows of other batches: at the beginning of a window, or of the
    /// next epoch. `None` for a position of another version.
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
        translated.go_to(next, saved.divisions.clone());
        (saved.version == self.version).then_some(translated)
    }
}

// As the feature `rc` of serde would do it.
fn serialize<S: Serializer>(data: &Arc<Fingerprint>, serializer: S) -> Result<S::Ok, S::Error> {
    data.as_ref().serialize(serializer)
}

fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Fingerprint>, D::Error> {
    Fingerprint::deserialize(deserializer).map(Arc::new)
}
