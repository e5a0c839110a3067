use std::time::Duration;

use super::position::{Place, Position};

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
