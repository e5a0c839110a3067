//! What an engine knows of a model's marked regions, and of the times with them kept and recomputed.

use std::time::Duration;

use super::policy::{Completed, Extent, taken};
use super::recompute::Regions;
use crate::error::{Cause, Resource, ResourceExhausted};
use crate::regions::{Held, Watched};

/// Logits stand at the peak this many times: themselves and their gradient.
const LOGITS: f64 = 2.;

#[derive(Debug, Default)]
pub(super) struct KnownRegions {
    /// A micro-batch has come to one.
    are_seen: bool,
    /// What failed with regions kept cannot be made smaller.
    pub(super) must_recompute: bool,
    /// Whether the last micro-batch recomputed them, and its size.
    pub(super) last: Option<(bool, usize)>,
    /// What the activations of a micro-batch of this cost hold.
    held: Option<(usize, Held)>,
    /// The logits of a micro-batch of this cost, in bytes.
    logits: Option<(usize, u64)>,
    kept: Proven,
    recomputed: Proven,
}

impl KnownRegions {
    /// Learns what the forward pass of a micro-batch of this cost came to.
    pub(super) fn note(&mut self, cost: usize, watched: &Watched) {
        self.are_seen |= watched.count > 0;
        if watched.logits > 0 {
            self.logits = Some((cost, watched.logits));
        }
        self.held = watched.held.map(|held| (cost, held)).or(self.held);
    }

    /// What becomes of the regions of a micro-batch.
    pub(super) fn of(&self, recomputes: bool) -> Regions {
        match recomputes {
            _ if !self.are_seen => Regions::None,
            true => Regions::Recomputed,
            false => Regions::Kept,
        }
    }

    pub(super) fn proven(&self, regions: Regions) -> &Proven {
        match regions {
            Regions::Recomputed => &self.recomputed,
            Regions::None | Regions::Kept => &self.kept,
        }
    }

    pub(super) fn proven_mut(&mut self, regions: Regions) -> &mut Proven {
        match regions {
            Regions::Recomputed => &mut self.recomputed,
            Regions::None | Regions::Kept => &mut self.kept,
        }
    }

    /// The bytes of the logits of a micro-batch of this cost, and of their gradients.
    pub(super) fn logits(&self, cost: usize, watched: &Watched) -> Option<u64> {
        let now = (watched.logits > 0).then_some((cost, watched.logits));
        let (of, logits) = now.or(self.logits)?;
        Some((LOGITS * logits as f64 * cost as f64 / of.max(1) as f64) as u64)
    }

    /// The bytes that recomputation saves in a micro-batch of this cost: the activations of all regions but the largest.
    pub(super) fn saving(&self, cost: usize, watched: &Watched) -> Option<u64> {
        let now = watched.held.map(|held| (cost, held));
        let (of, held) = now.or(self.held)?;
        let saving = held.all.saturating_sub(held.largest) as f64;
        Some((saving * cost as f64 / of.max(1) as f64) as u64)
    }
}

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
    /// left, nothing is known, or a library lacks what the pool returns in between; and any for which there is known to be room, if
    /// only it were in one piece.
    pub(super) fn may_pass(&self, cost: usize, exhausted: &ResourceExhausted) -> bool {
        let has_succeeded = cost <= self.cost;
        match exhausted.cause {
            Cause::Fragmented => has_succeeded || self.took.is_some(),
            Cause::Neighbour | Cause::Unknown => has_succeeded,
            Cause::DeviceFull => has_succeeded && exhausted.resource == Resource::LibraryWorkspace,
            _ => false,
        }
    }

    /// Returns the bytes that a micro-batch of this cost needs, if memory grows with the cost.
    pub(super) fn need(&self, cost: usize) -> Option<u64> {
        Some((self.took? as f64 * (cost as f64 / self.cost.max(1) as f64)) as u64)
    }
}

/// Batches of a shape that are timed, with regions kept and recomputed in turn, twice: the first ones also search their sizes.
const BATCHES: u32 = 4;

/// What was timed for [`Recompute::Measured`](super::Recompute::Measured) of batches of one shape.
#[derive(Debug, Default)]
pub(super) struct Trial {
    batches: u32,
    /// The shortest time that a sample took, with regions kept and recomputed.
    shortest: [Option<Duration>; 2],
}

impl Trial {
    pub(super) fn is_open(&self) -> bool {
        self.batches < BATCHES
    }

    /// Whether the next batch recomputes regions.
    pub(super) fn recomputes(&self) -> bool {
        let [kept, recomputed] = self.shortest;
        match self.is_open() {
            true => self.batches % 2 == 1,
            false => recomputed < kept,
        }
    }

    pub(super) fn note(&mut self, each: Duration) {
        let [kept, recomputed] = &mut self.shortest;
        let of = match self.batches % 2 {
            0 => kept,
            _ => recomputed,
        };
        *of = Some(of.map_or(each, |before| before.min(each)));
        self.batches += 1;
    }
}

/// Batches have the same shape if the costs of their samples have as many binary digits.
pub(super) fn shape(batch: &Extent) -> u32 {
    batch.each().ilog2()
}
