//! The rows of a record. Times are nanoseconds since its beginning, memory is in bytes.

use super::thin::Merge;
use crate::batch::{Plan, Reason};
use crate::error::{MemoryReading, Phase};
use crate::incident::IncidentKind;

/// A step, or several that were merged.
#[derive(Debug, Clone)]
pub(super) struct StepRow {
    pub(super) began: u64,
    pub(super) ended: u64,
    /// Time within steps, without the caller's work between them.
    pub(super) busy: u64,
    /// How many steps this row holds.
    pub(super) steps: u64,
    /// The number of the last of them, counted from 1.
    pub(super) last: u64,
    pub(super) samples: u64,
    pub(super) micro_batches: u64,
    pub(super) least: usize,
    pub(super) most: usize,
    pub(super) retries: u64,
    pub(super) in_use: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) peak: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) planned: Option<Planned>,
}

/// The policy's plan at the end of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    /// The largest micro-batch that fits, in samples, at most the batch's.
    pub(super) fits: Option<u64>,
    /// The predicted peak of a micro-batch, in bytes.
    pub(super) peak: Option<u64>,
    pub(super) reason: Reason,
}

impl Planned {
    pub(super) fn of(plan: &Plan, samples: u64, used_before: Option<u64>) -> Self {
        let at_most = |size: usize| samples.min(size as u64);
        let using = plan.using.map_or(samples, at_most);
        let peak = |used: u64| {
            let taken = plan.each?.saturating_mul(using);
            Some(used.saturating_add(plan.base?.saturating_add(taken)))
        };
        Self {
            fits: plan.fits.map(at_most),
            peak: used_before.and_then(peak),
            reason: plan.reason,
        }
    }
}

impl Merge for StepRow {
    fn merge(&mut self, next: &Self) {
        self.ended = next.ended;
        self.busy += next.busy;
        self.steps += next.steps;
        self.last = next.last;
        self.samples += next.samples;
        self.micro_batches += next.micro_batches;
        self.least = match (self.least, next.least) {
            (0, least) | (least, 0) => least,
            (a, b) => a.min(b),
        };
        self.most = self.most.max(next.most);
        self.retries += next.retries;
        self.in_use = self.in_use.max(next.in_use);
        self.reserved = self.reserved.max(next.reserved);
        self.peak = self.peak.max(next.peak);
        self.limit = next.limit;
        self.planned = next.planned;
    }
}

/// One phase of a micro-batch, or an update.
#[derive(Debug, Clone, Copy)]
pub(super) struct PhaseRow {
    pub(super) began: u64,
    pub(super) ended: u64,
    /// Counted from 1.
    pub(super) step: u64,
    pub(super) phase: Phase,
    pub(super) succeeded: bool,
    pub(super) memory: MemoryReading,
}

/// One finished micro-batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct MicroRow {
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) step: u64,
    pub(super) first: usize,
    pub(super) size: usize,
    pub(super) peak: Option<u64>,
}

/// An event at one time.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) at: u64,
    /// Counted from 1.
    pub(super) step: u64,
    pub(super) kind: IncidentKind,
    pub(super) text: String,
    /// The long form of an exhaustion.
    pub(super) detail: Option<String>,
}

/// A number of the caller's, or the mean of several.
#[derive(Debug, Clone)]
pub(super) struct Number {
    pub(super) at: u64,
    pub(super) value: f64,
    pub(super) count: u64,
}

impl Merge for Number {
    fn merge(&mut self, next: &Self) {
        let count = self.count + next.count;
        self.value += (next.value - self.value) * (next.count as f64 / count as f64);
        self.count = count;
        self.at = next.at;
    }
}
