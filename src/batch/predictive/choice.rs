use serde::{Deserialize, Serialize};

use super::room::Room;
use super::shape::Shape;
use super::trial::Trial;
use crate::batch::{RecomputeReason, Recomputing};

/// Micro-batches after which the first comparison is made again, doubled with each one that was made.
const STALE: u32 = 4096;
/// The same after a failure that other users of the memory caused.
const PASSING: u32 = 64;
/// A comparison is made again if the room has changed by this part since, but not sooner than after so many micro-batches,
/// doubled in the same way.
const CHANGED: u64 = 8;
const DWELL: u32 = 128;
/// Micro-batches without a time after which a trial ends.
const LOST: u32 = 1024;
/// Recomputation is chosen if it is faster by this factor.
const FASTER: f64 = 1.02;

/// Whether marked regions are recomputed: only where one sample does not fit otherwise, or where the larger micro-batches that fit
/// then make up for the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Choice {
    pub(super) recomputes: bool,
    /// The room in which one sample did not fit with regions kept, in bytes.
    refused: Option<u64>,
    /// Micro-batches after which that is tried again.
    #[serde(skip)]
    patience: u32,
    compared: Option<Compared>,
    /// How many comparisons were made, with either result.
    #[serde(skip)]
    comparisons: u32,
    /// Both are being timed.
    #[serde(skip)]
    trial: Option<Trial>,
    /// Micro-batches since the last decision.
    #[serde(skip)]
    lasted: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    /// The speed with recomputation, divided by that without; `None` if the times did not arrive.
    speed: Option<f64>,
    /// The room at that time, in bytes.
    room: u64,
}

impl Compared {
    fn is_faster(&self) -> bool {
        self.speed.is_some_and(|speed| speed > FASTER)
    }
}

/// Twice as many micro-batches for each time before.
fn doubled(after: u32, times: u32) -> u32 {
    after.saturating_mul(1 << times.min(16))
}

/// Whether a batch runs whole with regions kept: it fits, or it is within the size in use and likely fits in the margin.
fn is_whole(kept: &Shape, room: Room, batch: usize) -> bool {
    let fits = !kept.is_avoiding() && kept.fits(room).is_some_and(|fits| fits >= batch);
    let is_in_use = kept.cap.is_none_or(|cap| cap >= batch);
    let likely = kept.model.predict(batch);
    fits || is_in_use && likely.is_some_and(|likely| likely <= room.all)
}

impl Choice {
    /// Begins with regions kept if the state was saved in a trial: the trial is not saved, and nothing else would end it.
    pub(super) fn resume(&mut self) {
        let is_faster = self.compared.is_some_and(|compared| compared.is_faster());
        self.recomputes &= self.refused.is_some() || is_faster;
    }

    /// A micro-batch succeeded.
    pub(super) fn succeeded(&mut self) {
        self.lasted = self.lasted.saturating_add(1);
    }

    /// One sample did not fit with regions kept. After a passing failure that is tried again sooner; each time later.
    pub(super) fn refuse(&mut self, room: Option<Room>, is_passing: bool) {
        let first = if is_passing { PASSING } else { STALE };
        self.patience = doubled(self.patience, 1).max(first);
        self.refused = Some(room.map_or(0, |room| room.all));
        self.begin(true);
    }

    fn begin(&mut self, recomputes: bool) {
        (self.recomputes, self.trial, self.lasted) = (recomputes, None, 0);
    }

    /// Decides for a batch that costs `batch`.
    pub(super) fn decide(&mut self, kept: &Shape, room: Option<Room>, batch: usize) {
        // Without measurements only failures decide.
        let Some(room) = room else { return };
        let is_too_much = (kept.model.predict(kept.each)).is_some_and(|one| one > room.all);
        if let Some(refused) = self.refused {
            // It may have been a single sample that was larger than others, or another user of the memory.
            let is_stale = self.lasted >= self.patience;
            if !is_too_much && (is_stale || room.all > refused.saturating_add(refused / 16)) {
                self.refused = None;
                self.begin(false);
            }
            return;
        }
        if is_too_much {
            return self.refuse(Some(room), false);
        }
        if is_whole(kept, room, batch) {
            // Recomputation could only cost time.
            if self.recomputes || self.trial.is_some() {
                self.begin(false);
            }
            return;
        }
        if let Some(trial) = &self.trial {
            let speed = trial.speed();
            match speed.is_some() || self.lasted >= LOST {
                true => self.compare(speed, room),
                false => self.recomputes = !self.recomputes,
            }
            return;
        }
        match self.compared {
            Some(compared) if self.is_stale(compared, room) => {
                self.compared = None;
                self.begin(false);
            }
            Some(compared) if compared.is_faster() && !self.recomputes => self.begin(true),
            // Where smaller micro-batches are as fast, so are larger ones.
            None if kept.pace.is_decided(kept.each) && kept.pace.speed().is_some() => {
                self.begin(true);
                let micro_batch = kept.samples().map_or(batch, |samples| kept.cost(samples));
                self.trial = Some(Trial::new(batch, micro_batch));
            }
            _ => {}
        }
    }

    fn is_stale(&self, compared: Compared, room: Room) -> bool {
        let is_changed = compared.room.abs_diff(room.all) > compared.room / CHANGED;
        let [stale, dwell] = [STALE, DWELL].map(|after| doubled(after, self.comparisons));
        self.lasted >= stale || is_changed && self.lasted >= dwell
    }

    fn compare(&mut self, speed: Option<f64>, room: Room) {
        let compared = Compared {
            speed,
            room: room.all,
        };
        self.comparisons = self.comparisons.saturating_add(1);
        self.compared = Some(compared);
        self.begin(compared.is_faster());
    }

    /// A micro-batch took so long.
    pub(super) fn time(&mut self, recomputes: bool, cost: usize, seconds: f64) {
        if let Some(trial) = &mut self.trial {
            trial.time(recomputes, cost, seconds);
            self.lasted = 0;
        }
    }

    /// Whether times are of use while `shape` is the one in use.
    pub(super) fn wants_time(&self, shape: &Shape) -> bool {
        let is_first = self.compared.is_none() && shape.pace.speed().is_none();
        self.trial.is_some() || self.refused.is_none() && is_first
    }

    pub(super) fn explained(&self) -> Recomputing {
        Recomputing {
            is_on: self.recomputes,
            reason: match self.compared {
                _ if self.refused.is_some() => RecomputeReason::OneSample,
                _ if self.trial.is_some() => RecomputeReason::Timing,
                Some(compared)
                    if compared.speed.is_some() && compared.is_faster() == self.recomputes =>
                {
                    RecomputeReason::Faster
                }
                _ => RecomputeReason::NoNeed,
            },
            speed: self.compared.and_then(|compared| compared.speed),
        }
    }
}
