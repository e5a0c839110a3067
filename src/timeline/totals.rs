//! Of the whole run, whatever the buffers have forgotten.

use super::row::PhaseRow;
use crate::error::Phase;

/// The phases in the order in which a micro-batch goes through them.
pub(super) const ORDER: [Phase; 6] = [
    Phase::Load,
    Phase::Transfer,
    Phase::Forward,
    Phase::Backward,
    Phase::Accumulate,
    Phase::Optimizer,
];

#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    pub(super) steps: u64,
    pub(super) samples: u64,
    pub(super) recomputed: u64,
    pub(super) exhaustions: u64,
    pub(super) failures: u64,
    pub(super) peak: Option<u64>,
    pub(super) marks: u64,
    /// In [`ORDER`].
    pub(super) phases: [PhaseTotal; ORDER.len()],
}

/// What all runs of one phase took together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PhaseTotal {
    pub(super) count: u64,
    pub(super) nanoseconds: u64,
    /// The highest use that was met in it.
    pub(super) peak: Option<u64>,
}

impl Totals {
    /// A phase has ended; `peak` is the highest use that was its own.
    pub(super) fn phase(&mut self, row: &PhaseRow, peak: Option<u64>) {
        let index = ORDER.iter().position(|phase| *phase == row.phase);
        if let Some(total) = index.and_then(|index| self.phases.get_mut(index)) {
            total.count += 1;
            total.nanoseconds += row.ended.saturating_sub(row.began);
            total.peak = total.peak.max(peak);
        }
    }
}
