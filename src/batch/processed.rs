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
}

impl<T> Processed<T> {
    pub(crate) fn new() -> Self {
        Self {
            results: Vec::new(),
            sizes: Vec::new(),
            retries: 0,
            recomputed: 0,
            events: Vec::new(),
            peak: None,
            updated: Some(false),
        }
    }

    /// Adds what a later batch of the same update took.
    pub(crate) fn extend(&mut self, later: Self) {
        self.retries += later.retries;
        self.recomputed += later.recomputed;
        self.events.extend(later.events);
        self.peak = self.peak.max(later.peak);
    }
}
