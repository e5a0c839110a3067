use serde::{Deserialize, Serialize};

use super::room::Room;
use super::shape::Shape;
use crate::batch::{RecomputeReason, Recomputing};

/// Micro-batches after which regions are kept again, doubled with each failure.
const PATIENCE: u32 = 4096;
/// The same after a failure that other users of the memory caused.
const PASSING: u32 = 64;

/// Whether marked regions are recomputed: only where one sample does not fit otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Choice {
    /// The room in which one sample did not fit with regions kept, in bytes; `None` while they are kept.
    refused: Option<u64>,
    /// Micro-batches after which that is tried again.
    patience: u32,
    /// Micro-batches since the last decision.
    lasted: u32,
}

impl Choice {
    pub(super) fn recomputes(&self) -> bool {
        self.refused.is_some()
    }

    /// A micro-batch succeeded.
    pub(super) fn succeeded(&mut self) {
        self.lasted = self.lasted.saturating_add(1);
    }

    /// One sample did not fit with regions kept. After a passing failure that is tried again sooner; each time later.
    pub(super) fn refuse(&mut self, room: Option<Room>, is_passing: bool) {
        let first = if is_passing { PASSING } else { PATIENCE };
        self.patience = self.patience.saturating_mul(2).max(first);
        self.refused = Some(room.map_or(0, |room| room.all));
        self.lasted = 0;
    }

    /// Decides for the next batch.
    pub(super) fn decide(&mut self, kept: &Shape, room: Option<Room>) {
        // Without measurements only failures decide.
        let Some(room) = room else { return };
        let is_too_much = (kept.model.predict(kept.each)).is_some_and(|one| one > room.all);
        match self.refused {
            None if is_too_much => self.refuse(Some(room), false),
            // It may have been a single sample that was larger than others, or another user of the memory.
            Some(refused) if !is_too_much => {
                let is_raised = room.all > refused.saturating_add(refused / 16);
                if is_raised || self.lasted >= self.patience {
                    (self.refused, self.lasted) = (None, 0);
                }
            }
            _ => {}
        }
    }

    pub(super) fn explained(&self) -> Recomputing {
        Recomputing {
            is_on: self.recomputes(),
            reason: match self.recomputes() {
                true => RecomputeReason::OneSample,
                false => RecomputeReason::NoNeed,
            },
        }
    }
}
