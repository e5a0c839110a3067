use std::time::Duration;

use super::divide::Divide;

/// Where a batch comes from. A trainer remembers the position of the last batch that an update consumed, and saves it.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The loader's name.
    pub loader: &'a str,
    /// The loader's position after this batch, in its own format.
    pub position: &'a str,
    /// How long the caller waited for the batch.
    pub waited: Duration,
    /// Divides the loader's batches among the ranks; `None` if there is one rank.
    pub divide: Option<&'a dyn Divide>,
}

/// A trainer that knows which batches its updates have consumed.
pub trait Consumer {
    /// Returns the position of the loader of this name after the last batch that an update consumed; `None` if there was none.
    fn position(&self, loader: &str) -> Option<&str>;
}

/// How long the caller waited for all of them; `None` if nothing comes from a loader.
pub(crate) fn waited(origins: &[Origin<'_>]) -> Option<Duration> {
    let waits = origins.iter().map(|origin| origin.waited);
    waits.reduce(|a, b| a.saturating_add(b))
}
