use serde::{Deserialize, Serialize};

use super::divisions::Divisions;
use crate::error::DataError;

const VERSION: u32 = 1;

/// How far a loader has been read: a few numbers, however long the dataset is. Batches that were read ahead do not count.
///
/// It serializes with serde. It does not depend on the numbers of workers and ranks, so a run may continue with others: batches that were
/// [divided](crate::batch::Divide) among the ranks by weights are divided equally then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    version: u32,
    /// Samples of the dataset; `None` for a stream.
    len: Option<usize>,
    order: String,
    batches: String,
    /// The epoch of the next batch, counted from 0.
    pub epoch: u64,
    /// The next batch: its window in the epoch, and its place in the window.
    pub(super) window: usize,
    pub(super) batch: usize,
    /// Samples in all batches so far, of all ranks.
    pub samples: u64,
    /// How the batches from here on are divided among the ranks, where that is not equally.
    #[serde(default, skip_serializing_if = "Divisions::is_empty")]
    pub(super) divisions: Divisions,
}

impl Position {
    pub(super) fn new(len: Option<usize>, order: String, batches: String) -> Self {
        Self {
            version: VERSION,
            len,
            order,
            batches,
            epoch: 0,
            window: 0,
            batch: 0,
            samples: 0,
            divisions: Divisions::default(),
        }
    }

    /// The next batch is at this epoch, window, and place in the window, and the batches from there on are divided so.
    pub(super) fn go_to(&mut self, next: (u64, usize, usize), divisions: Divisions) {
        (self.epoch, self.window, self.batch) = next;
        self.divisions = divisions;
    }

    /// Checks that `saved` is a position of the same batches.
    pub(super) fn check(&self, loader: &str, saved: &Self) -> Result<(), DataError> {
        let count = |len: Option<usize>| len.map_or("unknown".to_owned(), |len| len.to_string());
        let pairs = [
            (
                "version",
                saved.version.to_string(),
                self.version.to_string(),
            ),
            ("samples in the dataset", count(saved.len), count(self.len)),
            ("order", saved.order.clone(), self.order.clone()),
            ("batches", saved.batches.clone(), self.batches.clone()),
        ];
        let different = pairs.into_iter().filter(|(_, saved, here)| saved != here);
        let differences: Vec<_> = different
            .map(|(what, saved, here)| format!("{what}: saved {saved}, here {here}"))
            .collect();
        match differences.is_empty() {
            true => Ok(()),
            false => Err(DataError::Position {
                loader: loader.to_owned(),
                differences,
            }),
        }
    }
}
