use std::time::Duration;

use super::event::Event;

/// The results of [`BatchProcessor::process`](super::BatchProcessor::process).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Processed<T> {
    /// One result for each finished chunk, in the order of the samples.
    pub results: Vec<T>,
    /// Sizes of the chunks, in samples.
    pub sizes: Vec<usize>,
    /// Number of chunks that did not fit and were computed again.
    pub retries: usize,
    /// Number of samples that were computed again.
    pub recomputed: usize,
    /// Changes of the size, and retries.
    pub events: Vec<Event>,
    /// The highest use of memory, in bytes; `None` if it is not counted.
    pub peak: Option<u64>,
    /// Whether parameters were updated; `None` if only the device knows.
    pub(crate) updated: Option<bool>,
    /// How long the caller waited for the batch; `None` if it came from no loader.
    pub(crate) waited: Option<Duration>,
}

impl<T> Processed<T> {
    /// Of no samples, or of none yet.
    pub(super) fn empty() -> Self {
        Self {
            results: Vec::new(),
            sizes: Vec::new(),
            retries: 0,
            recomputed: 0,
            events: Vec::new(),
            peak: None,
            updated: Some(false),
            waited: None,
        }
    }
}
