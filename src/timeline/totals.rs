//! Totals of the whole run, including rows that were dropped.

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

/// All runs of one phase.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PhaseTotal {
    pub(super) count: u64,
    pub(super) nanoseconds: u64,
    /// The highest use in it, in bytes.
    pub(super) peak: Option<u64>,
}

impl Totals {
    /// Adds a phase. `peak` is the highest use during it.
    pub(super) fn phase(&mut self, row: &PhaseRow, peak: Option<u64>) {
        let index = ORDER.iter().position(|phase| *phase == row.phase);
        if let Some(total) = index.and_then(|index| self.phases.get_mut(index)) {
            total.count += 1;
            total.nanoseconds += row.ended.saturating_sub(row.began);
            total.peak = total.peak.max(peak);
        }
    }
}
