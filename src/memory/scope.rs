//! Peaks over a stretch of the program, however stretches nest or overlap.

use parking_lot::Mutex;

use super::counters::COUNTERS;

/// The allocator keeps one running peak; every open scope collects it whenever any of them begins, reads or ends.
static SCOPES: Mutex<Scopes> = Mutex::new(Scopes {
    overall: 0,
    next: 0,
    open: Vec::new(),
});

struct Scopes {
    overall: usize,
    next: u64,
    open: Vec<(u64, usize)>,
}

impl Scopes {
    fn collect(&mut self) {
        let peak = COUNTERS.take_peak();
        self.overall = self.overall.max(peak);
        for (_, highest) in &mut self.open {
            *highest = (*highest).max(peak);
        }
    }

    fn peak(&self, id: u64) -> Option<usize> {
        let scope = self.open.iter().find(|(open, _)| *open == id)?;
        Some(scope.1)
    }
}

/// The highest use since the program started or [`reset_overall_peak`] was called.
pub(super) fn overall_peak() -> usize {
    SCOPES.lock().overall.max(COUNTERS.peak())
}

pub(super) fn reset_overall_peak() {
    let mut scopes = SCOPES.lock();
    scopes.collect();
    scopes.overall = 0;
}

/// The peak of host memory from its creation to each reading; see [`DeviceMemory::peak_scope`](super::DeviceMemory::peak_scope).
///
/// Scopes may nest and overlap, in one thread or several; each sees the whole process's memory.
///
/// ```
/// let memory = candle_headroom::DeviceMemory::host().open()?;
/// let scope = memory.peak_scope();
/// // … work …
/// match (scope.start(), scope.peak()) {
///     (Some(start), Some(peak)) => println!("{} bytes at most", peak - start),
///     _ => println!("nobody counts: the tracking allocator is not installed"),
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a scope that is dropped at once measures nothing"]
pub struct PeakScope {
    /// `None` where nobody counts.
    id: Option<u64>,
    start: usize,
}

impl PeakScope {
    pub(super) fn new(counted: bool) -> Self {
        if !counted {
            return Self { id: None, start: 0 };
        }
        let mut scopes = SCOPES.lock();
        scopes.collect();
        let (id, start) = (scopes.next, COUNTERS.in_use());
        scopes.next += 1;
        scopes.open.push((id, start));
        Self {
            id: Some(id),
            start,
        }
    }

    /// Bytes in use when the scope began.
    pub fn start(&self) -> Option<u64> {
        self.id.map(|_| self.start as u64)
    }

    /// The highest use since the scope began, in bytes; `None` where nobody counts.
    pub fn peak(&self) -> Option<u64> {
        let id = self.id?;
        let mut scopes = SCOPES.lock();
        scopes.collect();
        scopes.peak(id).map(|peak| peak as u64)
    }
}

impl Drop for PeakScope {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut scopes = SCOPES.lock();
            scopes.collect();
            scopes.open.retain(|(open, _)| *open != id);
        }
    }
}
