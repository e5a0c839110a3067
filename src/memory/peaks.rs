//! Peaks over parts of the program that nest or overlap.

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
    pub(super) fn collect(&mut self, peak: Option<u64>) {
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

    pub(super) fn begin(&mut self, in_use: u64) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.push((id, in_use));
        id
    }

    pub(super) fn peak(&self, id: u64) -> Option<u64> {
        let scope = self.open.iter().find(|(open, _)| *open == id)?;
        Some(scope.1)
    }

    pub(super) fn end(&mut self, id: u64) {
        self.open.retain(|(open, _)| *open != id);
    }
}
