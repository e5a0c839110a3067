use crate::batch::MemoryModel;

/// What a micro-batch may take, in bytes above what is in use before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// All that limit and device leave.
    pub(super) all: u64,
    /// `all` less the margin.
    pub(super) usable: u64,
}

impl Room {
    pub(super) fn new(all: u64, margin: f64) -> Self {
        let usable = (all as f64 * (1. - margin)) as u64;
        Self { all, usable }
    }

    /// The largest cost that leaves the margin free, at least one sample's; `None` if nothing was measured. If what is certain
    /// does not lead on, a larger one that likely fits.
    pub(super) fn fits(&self, model: &MemoryModel, each: usize) -> Option<usize> {
        let seen = model.largest_seen()?;
        let certain = model.largest_within(self.all, self.usable);
        let certain = certain.unwrap_or(0).max(each);
        Some(match certain < seen.saturating_add((seen / 4).max(each)) {
            true => certain.max(model.next_to_try(self.usable, each).unwrap_or(0)),
            false => certain,
        })
    }
}
