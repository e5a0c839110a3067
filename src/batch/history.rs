//! What an engine remembers from one micro-batch to the next.

use super::policy::{Completed, taken};
use crate::error::Cause;

/// The largest micro-batch that has succeeded, by cost: only up to that cost can a failure have a passing cause.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Proven {
    cost: usize,
    /// Bytes that it took, if measured.
    took: Option<u64>,
}

impl Proven {
    pub(super) fn note(&mut self, cost: usize, completed: &Completed) {
        if cost >= self.cost {
            self.cost = cost;
            self.took = taken(completed.peak, completed.before);
        }
    }

    /// Forgets what no longer succeeds.
    pub(super) fn retract(&mut self, cost: usize) {
        if cost <= self.cost {
            let below = cost.saturating_sub(1);
            *self = Self {
                took: self.need(below),
                cost: below,
            };
        }
    }

    /// Whether a cost that did not fit may fit at a second attempt: one that has succeeded before, if a neighbour may have
    /// left or nothing is known; and any for which there is known to be room, if only it were in one piece.
    pub(super) fn may_pass(&self, cost: usize, cause: Cause) -> bool {
        let has_succeeded = cost <= self.cost;
        match cause {
            Cause::Fragmented => has_succeeded || self.took.is_some(),
            Cause::Neighbour | Cause::Unknown => has_succeeded,
            _ => false,
        }
    }

    /// Returns the bytes that a micro-batch of this cost needs, if memory grows with the cost.
    pub(super) fn need(&self, cost: usize) -> Option<u64> {
        Some((self.took? as f64 * (cost as f64 / self.cost.max(1) as f64)) as u64)
    }
}
