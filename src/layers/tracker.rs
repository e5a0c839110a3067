//! What one thread does: the spans that it is in, and what they take.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use candle_core::Device;

use super::path::{PathId, Place, SpanKey};
use super::unit::{Calls, Unit, Work};
use crate::error::{Holding, Phase};
use crate::marks;
use crate::memory::{DeviceMemory, PeakScope};

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
    is_unit: bool,
    place: Place,
    began: Instant,
    /// The number of the unit in which it began.
    unit: u64,
    use_before: u64,
    highest: u64,
    /// What spans within it have taken already.
    inner: (i64, Duration),
    /// What counts in `inner` of the frame around it already: that one has ended first.
    counted: (i64, Duration),
    /// The next number for new spans of these names.
    next: BTreeMap<&'static str, u32>,
    /// The span that was left last.
    last: Option<Place>,
}

/// The state of a thread.
#[derive(Debug)]
pub(super) struct Tracker {
    scope: PeakScope,
    device: Device,
    root: Place,
    frames: Vec<Frame>,
    pub(super) unit: Unit,
    /// The piece with the highest use of the last step that has ended, or is in progress.
    pub(super) last: Unit,
    ended: Option<Instant>,
    /// The pieces of work on other devices that this thread is in.
    elsewhere: Vec<u64>,
    number: u64,
    use_now: u64,
}

impl Tracker {
    pub(super) fn new(memory: &DeviceMemory, number: u64) -> Self {
        let scope = memory.peak_scope();
        let now = scope.start();
        let mut unit = Unit::default();
        unit.begin(None, Vec::new(), now);
        unit.is_guessed = true;
        Self {
            scope,
            root: Place {
                phase: None,
                spans: PathId::root(number),
            },
            device: memory.device().clone(),
            frames: Vec::new(),
            unit,
            last: Unit::default(),
            ended: None,
            elsewhere: Vec::new(),
            number: 0,
            use_now: now.unwrap_or(0),
        }
    }

    /// Takes what happened since the last call over into the current path. What this type allocates itself is not counted: each change
    /// begins with this and ends with [`resume`](Self::resume).
    pub(super) fn settle(&mut self) {
        let Some((now, highest)) = self.scope.take() else {
            return;
        };
        let highest = highest.max(self.use_now);
        let place = self.place();
        self.unit.ledger.note(place, now, highest);
        if let Some(frame) = self.frames.last_mut() {
            frame.highest = frame.highest.max(highest);
        }
        self.use_now = now;
    }

    fn resume(&mut self) {
        if self.device.is_cpu()
            && let Some(now) = self.scope.memory().in_use()
        {
            self.unit.ledger.skip_to(now);
            self.use_now = now;
        }
        marks::layers(|| self.place().spans.names().join("."));
    }

    fn push(&mut self, key: Key, is_unit: bool, place: Place) {
        self.frames.push(Frame {
            key,
            is_unit,
            place,
            began: Instant::now(),
            unit: self.number,
            use_before: self.use_now,
            highest: self.use_now,
            inner: Default::default(),
            counted: Default::default(),
            next: BTreeMap::new(),
            last: None,
        });
    }

    /// Where the thread is.
    pub(super) fn place(&self) -> Place {
        self.frames.last().map_or(self.root, |frame| frame.place)
    }

    /// Enters a span. `find` returns its path within that of the spans around it, given the number that a new one of a name begins at, and
    /// the number that it got if it is new.
    pub(super) fn enter(
        &mut self,
        key: Key,
        name: &'static str,
        find: impl FnOnce(PathId, u32) -> (PathId, Option<u32>),
    ) {
        self.settle();
        let around = self.place();
        let next = self.frames.last().and_then(|frame| frame.next.get(name));
        let (spans, number) = find(around.spans, next.copied().unwrap_or(0));
        if let (Some(number), Some(frame)) = (number, self.frames.last_mut()) {
            frame.next.insert(name, number.saturating_add(1));
        }
        let place = Place { spans, ..around };
        // Outside of a trainer a step lasts until the outermost span is entered again.
        if self.frames.is_empty() && self.unit.stats.has(place) {
            self.end_unit();
            self.guess_unit();
        }
        self.push(key, false, place);
        self.resume();
    }

    /// Enters a place, if there is one, unless this thread works on another device.
    fn enter_place(&mut self, key: Key, place: impl FnOnce(&Self) -> Option<Place>) {
        if self.elsewhere.is_empty() {
            self.settle();
            if let Some(place) = place(self) {
                self.push(key, false, place);
            }
            self.resume();
        }
    }

    /// Enters a phase.
    pub(super) fn enter_phase(&mut self, guard: u64, phase: Phase) {
        let phase = Some(phase);
        let place = Place { phase, ..self.root };
        self.enter_place(Key::Guard(guard), |_| Some(place));
    }

    /// Enters spans that were left before, in the present phase.
    pub(super) fn enter_again(&mut self, guard: u64, spans: PathId) {
        self.enter_place(Key::Guard(guard), |tracker| {
            let spans = spans.within(tracker.root.spans);
            Some(Place {
                spans,
                ..tracker.place()
            })
        });
    }

    /// Enters the span that was left last here, to go on with its work.
    pub(super) fn enter_last(&mut self, guard: u64) {
        self.enter_place(Key::Last(guard), |tracker| tracker.frames.last()?.last);
    }

    /// Enters work on another device, whose phases are not this one's.
    pub(super) fn enter_elsewhere(&mut self, guard: u64) {
        self.elsewhere.push(guard);
    }

    /// Leaves what this guard has entered, if anything.
    pub(super) fn leave_guard(&mut self, guard: u64) {
        self.elsewhere.retain(|other| *other != guard);
        let keys = [Key::Guard(guard), Key::Last(guard)];
        let entered = self.frames.iter().rev().map(|frame| frame.key);
        if let Some(key) = entered.into_iter().find(|key| keys.contains(key)) {
            self.leave(key);
        }
    }

    /// Whether it measures this device.
    pub(super) fn is_on(&self, device: &Device) -> bool {
        self.device.location() == device.location()
    }

    /// Leaves a span or a guard, also one that others are entered within.
    pub(super) fn leave(&mut self, key: Key) {
        let Some(at) = self.frames.iter().rposition(|frame| frame.key == key) else {
            return;
        };
        self.settle();
        let frame = self.frames.remove(at);
        let held = self.use_now as i64 - frame.use_before as i64;
        let time = frame.began.elapsed();
        let (mut inner, mut inner_time) = frame.inner;
        if let Some(still) = self.frames.get_mut(at) {
            still.counted = (
                self.use_now as i64 - still.use_before as i64,
                still.began.elapsed(),
            );
            inner += still.counted.0;
            inner_time += still.counted.1;
        }
        if let Some(around) = at.checked_sub(1).and_then(|at| self.frames.get_mut(at)) {
            around.highest = around.highest.max(frame.highest);
            around.inner.0 += held - frame.counted.0;
            around.inner.1 += time.saturating_sub(frame.counted.1);
            if matches!(frame.key, Key::Span(..)) {
                around.last = Some(frame.place);
            }
        }
        let count = match frame.key {
            Key::Span(..) => Some(1),
            // What it frees is not kept by the span.
            Key::Last(_) => self.unit.stats.has(frame.place).then_some(0),
            Key::Guard(_) => None,
        };
        if let Some(count) = count
            && frame.unit == self.number
        {
            let call = Calls {
                count,
                held,
                own: held - inner,
                highest: frame.highest.saturating_sub(frame.use_before),
                time,
                own_time: time.saturating_sub(inner_time),
            };
            self.unit.stats.add(frame.place, call);
        }
        if frame.is_unit {
            self.end_unit();
            self.guess_unit();
        }
        drop(frame);
        self.resume();
    }

    /// Begins a piece of work, unless it is a part of another one.
    pub(super) fn enter_unit(&mut self, guard: u64, work: Option<(u64, Work)>, held: Vec<Holding>) {
        self.settle();
        let is_unit = self.frames.iter().all(|frame| !frame.is_unit);
        let place = match is_unit {
            true => self.root,
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

    fn guess_unit(&mut self) {
        self.begin_unit(None, Vec::new());
        self.unit.is_guessed = true;
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

    /// Of several threads, the highest is the one that reports are about: one with a step that somebody has said, the latest of
    /// these.
    pub(super) fn rank(&self) -> (bool, Option<Instant>, bool) {
        let is_said = self.last.is_said() || self.unit.is_said();
        (is_said, self.ended, !self.unit.is_empty())
    }
}
