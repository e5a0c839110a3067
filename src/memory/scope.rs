//! Peaks over parts of the program that nest or overlap.

use std::sync::Arc;

use super::backing::Backing;

/// Allocator and driver keep one running peak each; every open scope takes it over whenever any scope begins, is read or ends.
#[derive(Debug)]
pub(super) struct Scopes {
    overall: u64,
    next: u64,
    open: Vec<(u64, u64)>,
}

impl Scopes {
    pub(super) const fn new() -> Self {
        Self {
            overall: 0,
            next: 0,
            open: Vec::new(),
        }
    }

    /// Adds a peak that was just taken to all scopes.
    fn collect(&mut self, peak: Option<u64>) {
        let peak = peak.unwrap_or(0);
        self.overall = self.overall.max(peak);
        for (_, highest) in &mut self.open {
            *highest = (*highest).max(peak);
        }
    }

    /// The highest use since the program started or since [`reset`](Self::reset).
    pub(super) fn overall(&mut self, peak: Option<u64>) -> u64 {
        self.collect(peak);
        self.overall
    }

    /// Restarts the overall peak; open scopes keep theirs.
    pub(super) fn reset(&mut self, peak: Option<u64>) {
        self.collect(peak);
        self.overall = 0;
    }

    fn begin(&mut self, in_use: u64) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.push((id, in_use));
        id
    }

    fn peak(&self, id: u64) -> Option<u64> {
        let scope = self.open.iter().find(|(open, _)| *open == id)?;
        Some(scope.1)
    }
}

/// The peak of a device's memory since the scope's creation; from [`DeviceMemory::peak_scope`](super::DeviceMemory::peak_scope).
///
/// Scopes may nest and overlap, in one thread or several; each measures the whole process's use of the device.
///
/// ```
/// let memory = candle_headroom::DeviceMemory::host().open()?;
/// let scope = memory.peak_scope();
/// // … work …
/// match (scope.start(), scope.peak()) {
///     (Some(start), Some(peak)) => println!("{} bytes at most", peak - start),
///     _ => println!("not counted: the tracking allocator is not installed"),
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a scope that is dropped at once measures nothing"]
pub struct PeakScope {
    memory: Arc<dyn Backing>,
    /// The scope's number and its use at the start; `None` if the use is not counted.
    open: Option<(u64, u64)>,
}

impl PeakScope {
    pub(super) fn new(memory: Arc<dyn Backing>) -> Self {
        let open = memory.in_use().map(|start| {
            let mut scopes = memory.scopes().lock();
            scopes.collect(memory.take_peak());
            (scopes.begin(start), start)
        });
        Self { memory, open }
    }

    /// Bytes in use when the scope began.
    pub fn start(&self) -> Option<u64> {
        self.open.map(|(_, start)| start)
    }

    /// The highest use since the scope began, in bytes; `None` if it is not counted.
    pub fn peak(&self) -> Option<u64> {
        let (id, _) = self.open?;
        let mut scopes = self.memory.scopes().lock();
        scopes.collect(self.memory.take_peak());
        scopes.peak(id)
    }
}

impl Drop for PeakScope {
    fn drop(&mut self) {
        if let Some((id, _)) = self.open {
            let mut scopes = self.memory.scopes().lock();
            scopes.collect(self.memory.take_peak());
            scopes.open.retain(|(open, _)| *open != id);
        }
    }
}
