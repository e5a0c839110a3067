//! Pieces of work: when one begins and ends, and which one reports are about.

use std::time::Instant;

use super::{Key, Tracker};
use crate::error::Holding;
use crate::layers::unit::Work;

impl Tracker {
    /// Begins a piece of work, unless it is a part of another one.
    pub(in crate::layers) fn enter_unit(
        &mut self,
        guard: u64,
        work: Option<(u64, Work)>,
        held: Vec<Holding>,
    ) {
        self.settle();
        let is_unit = self.frames.iter().all(|frame| !frame.is_unit);
        let place = match is_unit {
            true => (self.root, self.root),
            false => self.place(),
        };
        if is_unit {
            self.end_unit();
            self.begin_unit(work, held);
        }
        self.push(Key::Guard(guard), is_unit, place);
        self.resume();
    }

    fn begin_unit(&mut self, work: Option<(u64, Work)>, held: Vec<Holding>) {
        self.number += 1;
        let now = self.scope.start().map(|_| self.use_now);
        self.unit.begin(work, held, now);
    }

    pub(super) fn guess_unit(&mut self) {
        self.begin_unit(None, Vec::new());
        self.unit.is_guessed = true;
    }

    pub(super) fn end_unit(&mut self) {
        if self.unit.is_empty() {
            return;
        }
        self.ended = Some(Instant::now());
        if self.unit.outdoes(&self.last) {
            std::mem::swap(&mut self.unit, &mut self.last);
        }
    }

    /// Of several threads, the highest is the one that reports are about: one with a step that somebody has said, the latest of
    /// these.
    pub(in crate::layers) fn rank(&self) -> (bool, Option<Instant>, bool) {
        let is_said = self.last.is_said() || self.unit.is_said();
        (is_said, self.ended, !self.unit.is_empty())
    }
}
