//! What the size of the next micro-batch follows from.
//!
//! Where memory is not measured, nothing but trying shows that room has come back. A failure is followed by a bounded wait (18
//! micro-batches where a batch has 2 parts, 32 for 4, 56 for 8, at most 4,096), then by one micro-batch of the next larger size,
//! the probe. If that fails, the wait begins again: failed probes cost at most a ninth of the work with 2 parts, a twenty-fourth
//! with 4. If it succeeds, each micro-batch takes the next larger size until one fails. No step skips more than 5 %, so that the
//! size before it is at least 0.95 of what fits.

use super::{Predictive, Start};
use crate::batch::Reason;

/// Parts are taken away one by one, or this part of them where there are many.
const FEWER: usize = 20;
/// Batches between two probes, less one for each doubling of the parts, and the least; as micro-batches at most this many.
const BATCHES: usize = 10;
const LEAST_BATCHES: usize = 4;
const MOST_WAIT: usize = 4096;
/// The same after a failure that other users of the memory caused.
const PASSING_WAIT: usize = 16;

impl Predictive {
    /// The largest size in use, in samples; `None` for the whole batch.
    pub(super) fn largest(&self) -> Option<usize> {
        match self.is_cold() {
            true => Some(1),
            false => self.present().samples(),
        }
    }

    /// Whether nothing has run yet: what is allocated once would come on top of a larger micro-batch.
    fn is_cold(&self) -> bool {
        self.start == Start::Cold && self.room.is_some()
    }

    /// Whether `largest` samples are to run although that cuts the batch unevenly: the batch would likely take fewer parts,
    /// and one run of more samples than were ever seen makes that certain.
    pub(super) fn is_worth_a_look(&self, largest: usize) -> bool {
        let (shape, parts) = (self.present(), self.samples.div_ceil(largest));
        let seen = shape.model.largest_seen().filter(|_| !shape.is_avoiding());
        let is_new = seen.is_some_and(|seen| seen < shape.cost(largest));
        is_new && parts > 1 && {
            let fewer = shape.cost(self.samples.div_ceil(parts - 1).min(self.options.most));
            let likely = self.room.zip(shape.model.predict(fewer));
            likely.is_some_and(|(room, likely)| likely <= room.usable)
        }
    }

    /// The size to try where memory is not measured, if it is time for that: the batch in fewer parts.
    pub(super) fn probe(&self) -> Option<usize> {
        let shape = self.present();
        let is_due = self.wait == 0 || shape.is_growing;
        let is_blind = shape.is_blind(self.room) && !self.is_cold();
        let largest = (self.largest()).filter(|_| is_due && is_blind)?;
        let parts = self.samples.div_ceil(largest);
        let fewer = parts.saturating_sub((parts / FEWER).max(1)).max(1);
        let probe = self.samples.div_ceil(fewer).min(self.options.most);
        (probe > largest).then_some(probe)
    }

    /// Begins the wait for a probe, after a failure where memory is not measured.
    pub(super) fn await_room(&mut self, is_passing: bool) {
        let largest = self.present().samples().unwrap_or(self.samples);
        let parts = self.samples.div_ceil(largest.max(1));
        let doublings = parts.checked_ilog2().unwrap_or(0) as usize;
        let batches = BATCHES.saturating_sub(doublings).max(LEAST_BATCHES);
        let most = if is_passing { PASSING_WAIT } else { MOST_WAIT };
        self.wait = parts.saturating_mul(batches).min(most);
    }

    /// Why the size is not larger.
    pub(super) fn reason(&self) -> Reason {
        let shape = self.present();
        let (largest, most) = (self.largest().unwrap_or(usize::MAX), self.options.most);
        match () {
            () if largest >= most && most < usize::MAX => Reason::Allowed,
            () if self.is_cold() => Reason::Unmeasured,
            () if shape.is_avoiding() => Reason::Failed,
            () if largest == usize::MAX => Reason::Unbounded,
            () => Reason::Room,
        }
    }
}
