//! What an engine remembers from one micro-batch to the next.

use std::collections::VecDeque;

use candle_core::Device;

use super::policy::{BatchPolicy, Completed, Extent, taken};
use super::recompute::Regions;
use crate::error::Cause;
use crate::memory::Stopwatch;

/// Stopwatches that may wait for the device at once.
const PENDING: usize = 64;

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

/// Times that are being measured on the device, the oldest first. They are delivered when the device has got there: nothing
/// waits for it.
#[derive(Debug, Default)]
pub(super) struct Timings(VecDeque<(Extent, Regions, Stopwatch)>);

impl Timings {
    /// Starts a measurement, if it costs nothing or the policy asks for it. A device that cannot measure is not an error.
    pub(super) fn start(&self, device: &Device, policy: &dyn BatchPolicy) -> Option<Stopwatch> {
        let is_wanted = device.is_cpu() || (policy.wants_time() && self.0.len() < PENDING);
        is_wanted.then(|| Stopwatch::start(device).ok()).flatten()
    }

    pub(super) fn stop(
        &mut self,
        stopwatch: Option<Stopwatch>,
        micro_batch: Extent,
        regions: Regions,
    ) {
        if let Some(mut stopwatch) = stopwatch
            && stopwatch.stop().is_ok()
        {
            self.0.push_back((micro_batch, regions, stopwatch));
        }
    }

    pub(super) fn deliver(&mut self, policy: &mut dyn BatchPolicy) {
        while let Some((micro_batch, regions, stopwatch)) = self.0.front() {
            match stopwatch.elapsed() {
                Ok(None) => return,
                Ok(Some(elapsed)) => policy.timed(micro_batch, *regions, elapsed),
                Err(_) => {} // the next call on the device fails too, and reports it
            }
            self.0.pop_front();
        }
    }
}
