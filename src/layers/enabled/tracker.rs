//! What one thread does in a step: the spans that it is in, and what they take.

use std::time::{Duration, Instant};

use super::path::{Part, PathId};
use super::unit::{Calls, Unit, Work};
use crate::error::{Holding, Phase};
use crate::memory::{DeviceMemory, PeakScope};

/// A span of one subscriber: its layer's number, and its own.
pub(super) type SpanKey = (u32, u64);

/// What began and has not ended yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Span(SpanKey),
    /// A phase, a piece of work of this crate, or a step of a loop of one's own.
    Guard(u64),
    /// More work of the span that was left last.
    Last(u64),
}

#[derive(Debug)]
struct Frame {
    key: Key,
    /// The spans around this point, and the same within the phase.
    bare: PathId,
    path: PathId,
    began: Instant,
    use_before: u64,
    /// The time of spans within it.
    inner: Duration,
    /// What counts in `inner` of the frame around it already: that one has ended first.
    counted: Duration,
    /// The next number for new spans of these names.
    next: Vec<(&'static str, u32)>,
    /// The span that was left last.
    last: Option<(PathId, PathId)>,
}

/// The state of a thread.
#[derive(Debug)]
pub(super) struct Tracker {
    scope: PeakScope,
    /// Whether memory is counted on the host, where this type's own counts too.
    is_on_host: bool,
    root: PathId,
    /// The piece of work in progress, and what was entered within it. Outside of a piece there are none: nothing is measured.
    frames: Vec<Frame>,
    pub(super) unit: Unit,
    /// The piece with the highest use of the last step that has ended, or is in progress.
    pub(super) last: Unit,
    ended: Option<Instant>,
    use_now: u64,
}

impl Tracker {
    pub(super) fn new(memory: &DeviceMemory, number: u64) -> Self {
        Self {
            scope: memory.peak_scope(),
            is_on_host: memory.device().is_cpu(),
            root: PathId::ROOT.child(Part::Root(number)),
            frames: Vec::new(),
            unit: Unit::default(),
            last: Unit::default(),
            ended: None,
            use_now: 0,
        }
    }

    /// Takes what happened since the last call over into the current path. What this type allocates itself is not counted: each change
    /// begins with this and ends with [`resume`](Self::resume).
    pub(super) fn settle(&mut self) {
        let Some((now, highest)) = self.scope.take() else {
            return;
        };
        if let Some(top) = self.frames.last() {
            let highest = highest.max(self.use_now);
            self.unit.ledger.note(top.path, now, highest);
        }
        self.use_now = now;
    }

    fn resume(&mut self) {
        if self.is_on_host
            && let Some(now) = self.scope.in_use()
        {
            self.unit.ledger.skip_to(now);
            self.use_now = now;
        }
    }

    fn push(&mut self, key: Key, (bare, path): (PathId, PathId)) {
        self.frames.push(Frame {
            key,
            bare,
            path,
            began: Instant::now(),
            use_before: self.use_now,
            inner: Duration::ZERO,
            counted: Duration::ZERO,
            next: Vec::new(),
            last: None,
        });
        self.resume();
    }

    /// The spans around this point, and the same within the phase.
    pub(super) fn place(&self) -> (PathId, PathId) {
        let top = self.frames.last();
        top.map_or((self.root, self.root), |frame| (frame.bare, frame.path))
    }

    /// Begins a piece of work, unless it is a part of another one.
    pub(super) fn enter_unit(&mut self, guard: u64, work: Option<(u64, Work)>, held: Vec<Holding>) {
        self.settle();
        if self.frames.is_empty() {
            let now = self.scope.start().map(|_| self.use_now);
            self.unit.begin(work, held, now);
        }
        self.push(Key::Guard(guard), self.place());
    }

    /// Enters a span. `find` returns its path within that of the spans around it, given the number that a new one of a name begins at, and
    /// the number that it got if it is new.
    pub(super) fn enter(
        &mut self,
        key: Key,
        name: &'static str,
        find: impl FnOnce(PathId, u32) -> (PathId, Option<u32>),
    ) {
        if self.frames.is_empty() {
            return;
        }
        self.settle();
        let (around, within) = self.place();
        let next = self.frames.last().map(|frame| frame.next.iter());
        let next = next.and_then(|mut next| next.find(|(known, _)| *known == name));
        let (bare, number) = find(around, next.map_or(0, |(_, number)| *number));
        if let (Some(number), Some(frame)) = (number, self.frames.last_mut()) {
            frame.next.retain(|(known, _)| *known != name);
            frame.next.push((name, number.saturating_add(1)));
        }
        let path = match (bare == around, around == within) {
            (true, _) => within,
            (false, true) => bare,
            (false, false) => bare.last().map_or(within, |part| within.child(part)),
        };
        self.push(key, (bare, path));
    }

    /// Enters a phase: spans in it belong to it, whichever spans are around it.
    pub(super) fn enter_phase(&mut self, guard: u64, phase: Phase) {
        if self.frames.is_empty() {
            return;
        }
        self.settle();
        let path = self.root.child(Part::Phase(phase));
        self.push(Key::Guard(guard), (self.root, path));
    }

    /// Enters a place that was left before, in the present phase.
    pub(super) fn enter_place(&mut self, guard: u64, place: PathId) {
        if self.frames.is_empty() {
            return;
        }
        self.settle();
        let (_, within) = self.place();
        let phase = within.parts().into_iter();
        let phase = phase.filter(|part| matches!(part, Part::Phase(_)));
        let within = phase.fold(self.root, PathId::child);
        let spans = place.parts().into_iter();
        let spans = spans.filter(|part| matches!(part, Part::Span(..)));
        let place = spans.fold((self.root, within), |(bare, path), part| {
            (bare.child(part), path.child(part))
        });
        self.push(Key::Guard(guard), place);
    }

    /// Enters the span that was left last here, to go on with its work.
    pub(super) fn enter_last(&mut self, guard: u64) {
        if let Some(place) = self.frames.last().and_then(|frame| frame.last) {
            self.settle();
            self.push(Key::Last(guard), place);
        }
    }

    /// Leaves what this guard has entered, if anything.
    pub(super) fn leave_guard(&mut self, guard: u64) {
        let keys = [Key::Guard(guard), Key::Last(guard)];
        keys.into_iter().for_each(|key| self.leave(key));
    }

    /// Leaves a span or a guard, also one that others are entered within.
    pub(super) fn leave(&mut self, key: Key) {
        let Some(at) = self.frames.iter().rposition(|frame| frame.key == key) else {
            return;
        };
        self.settle();
        if at == 0 {
            // What was entered in this piece and is left later counts to no other one.
            self.frames.clear();
            self.end_unit();
            return self.resume();
        }
        let frame = self.frames.remove(at);
        let (time, mut inner) = (frame.began.elapsed(), frame.inner);
        if let Some(still) = self.frames.get_mut(at) {
            still.counted = still.began.elapsed();
            inner += still.counted;
        }
        if let Some(around) = self.frames.get_mut(at - 1) {
            around.inner += time.saturating_sub(frame.counted);
            if matches!(frame.key, Key::Span(..)) {
                around.last = Some((frame.bare, frame.path));
            }
        }
        let count = match frame.key {
            Key::Span(..) => Some(1),
            // What it frees is not kept by the span.
            Key::Last(_) => self.unit.stats.of(frame.path).map(|_| 0),
            Key::Guard(_) => None,
        };
        if let Some(count) = count {
            let call = Calls {
                count,
                held: self.use_now as i64 - frame.use_before as i64,
                time,
                own_time: time.saturating_sub(inner),
            };
            self.unit.stats.add(frame.path, call);
        }
        drop(frame);
        self.resume();
    }

    fn end_unit(&mut self) {
        if self.unit.is_empty() {
            return;
        }
        self.ended = Some(Instant::now());
        if self.unit.outdoes(&self.last) {
            std::mem::swap(&mut self.unit, &mut self.last);
        }
    }

    /// Of several threads, the highest is the one that reports are about: the latest to finish a piece of work, or one that has begun.
    pub(super) fn rank(&self) -> (Option<Instant>, bool) {
        (self.ended, !self.unit.is_empty())
    }
}
