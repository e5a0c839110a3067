//! What one thread does: the spans that it is in, and what they take.

mod units;

use std::time::{Duration, Instant};

use candle_core::Device;

use crate::error::Phase;
use crate::layers::claims::SpanKey;
use crate::layers::path::{Part, PathId, set_current};
use crate::layers::stats::Calls;
use crate::layers::unit::Unit;
use crate::memory::{DeviceMemory, PeakScope};

/// What began and has not ended yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::layers) enum Key {
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
    /// The spans around this point, and the same within the phase.
    bare: PathId,
    path: PathId,
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
    next: Vec<(&'static str, u32)>,
    /// The span that was left last.
    last: Option<(PathId, PathId)>,
}

/// The state of a thread.
#[derive(Debug)]
pub(in crate::layers) struct Tracker {
    scope: PeakScope,
    device: Device,
    root: PathId,
    frames: Vec<Frame>,
    /// For each span the path around it in the latest phase, and its own.
    in_phases: Vec<(PathId, PathId)>,
    pub(in crate::layers) unit: Unit,
    /// The piece with the highest use of the last step that has ended, or is in progress.
    pub(in crate::layers) last: Unit,
    ended: Option<Instant>,
    /// The pieces of work on other devices that this thread is in.
    elsewhere: Vec<u64>,
    number: u64,
    use_now: u64,
}

impl Tracker {
    pub(in crate::layers) fn new(memory: &DeviceMemory, number: u64) -> Self {
        let scope = memory.peak_scope();
        let now = scope.start();
        let mut unit = Unit::default();
        unit.begin(None, Vec::new(), now);
        unit.is_guessed = true;
        Self {
            scope,
            root: PathId::ROOT.child(Part::Root(number)),
            device: memory.device().clone(),
            frames: Vec::new(),
            in_phases: Vec::new(),
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
    pub(in crate::layers) fn settle(&mut self) {
        let Some((now, highest)) = self.scope.take() else {
            return;
        };
        let highest = highest.max(self.use_now);
        let path = self.frames.last().map_or(self.root, |frame| frame.path);
        self.unit.ledger.note(path, now, highest);
        if let Some(frame) = self.frames.last_mut() {
            frame.highest = frame.highest.max(highest);
        }
        self.use_now = now;
    }

    fn resume(&mut self) {
        let path = self.frames.last().map_or(self.root, |frame| frame.path);
        set_current(path);
        if self.device.is_cpu()
            && let Some(now) = self.scope.memory().in_use()
        {
            self.unit.ledger.skip_to(now);
            self.use_now = now;
        }
    }

    fn push(&mut self, key: Key, is_unit: bool, (bare, path): (PathId, PathId)) {
        self.frames.push(Frame {
            key,
            is_unit,
            bare,
            path,
            began: Instant::now(),
            unit: self.number,
            use_before: self.use_now,
            highest: self.use_now,
            inner: Default::default(),
            counted: Default::default(),
            next: Vec::new(),
            last: None,
        });
    }

    fn place(&self) -> (PathId, PathId) {
        let top = self.frames.last();
        top.map_or((self.root, self.root), |frame| (frame.bare, frame.path))
    }

    /// Enters a span. `find` returns its path within that of the spans around it, given the number that a new one of a name begins at, and
    /// the number that it got if it is new.
    pub(in crate::layers) fn enter(
        &mut self,
        key: Key,
        name: &'static str,
        find: impl FnOnce(PathId, u32) -> (PathId, Option<u32>),
    ) {
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
            (false, false) => self.in_phase(bare, within),
        };
        // Outside of a trainer a step lasts until the outermost span is entered again.
        if self.frames.is_empty() && self.unit.stats.of(path).is_some() {
            self.end_unit();
            self.guess_unit();
        }
        self.push(key, false, (bare, path));
        self.resume();
    }

    /// The path of a span in the phase that is around it.
    fn in_phase(&mut self, bare: PathId, within: PathId) -> PathId {
        if self.in_phases.len() <= bare.index() {
            self.in_phases.resize(bare.index() + 1, Default::default());
        }
        match self.in_phases.get_mut(bare.index()) {
            Some((known, path)) if *known == within && *path != PathId::ROOT => *path,
            entry => {
                let path = bare.last().map_or(within, |part| within.child(part));
                if let Some(entry) = entry {
                    *entry = (within, path);
                }
                path
            }
        }
    }

    /// Enters a phase: spans in it belong to it, whichever spans are around it.
    pub(in crate::layers) fn enter_phase(&mut self, guard: u64, phase: Phase) {
        if !self.elsewhere.is_empty() {
            return;
        }
        self.settle();
        let path = self.root.child(Part::Phase(phase));
        self.push(Key::Guard(guard), false, (self.root, path));
        self.resume();
    }

    /// Enters a place that was left before, in the present phase.
    pub(in crate::layers) fn enter_place(&mut self, guard: u64, place: PathId) {
        if !self.elsewhere.is_empty() {
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
        self.push(Key::Guard(guard), false, place);
        self.resume();
    }

    /// Enters the span that was left last here, to go on with its work.
    pub(in crate::layers) fn enter_last(&mut self, guard: u64) {
        let last = self.frames.last().and_then(|frame| frame.last);
        if let Some(place) = last.filter(|_| self.elsewhere.is_empty()) {
            self.settle();
            self.push(Key::Last(guard), false, place);
            self.resume();
        }
    }

    /// Enters work on another device, whose phases are not this one's.
    pub(in crate::layers) fn enter_elsewhere(&mut self, guard: u64) {
        self.elsewhere.push(guard);
    }

    /// Leaves what this guard has entered, if anything.
    pub(in crate::layers) fn leave_guard(&mut self, guard: u64) {
        self.elsewhere.retain(|other| *other != guard);
        let keys = [Key::Guard(guard), Key::Last(guard)];
        let entered = self.frames.iter().rev().map(|frame| frame.key);
        if let Some(key) = entered.into_iter().find(|key| keys.contains(key)) {
            self.leave(key);
        }
    }

    /// Whether it measures this device.
    pub(in crate::layers) fn is_on(&self, device: &Device) -> bool {
        self.device.location() == device.location()
    }

    /// Leaves a span or a guard, also one that others are entered within.
    pub(in crate::layers) fn leave(&mut self, key: Key) {
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
                around.last = Some((frame.bare, frame.path));
            }
        }
        let count = match frame.key {
            Key::Span(..) => Some(1),
            // What it frees is not kept by the span.
            Key::Last(_) => self.unit.stats.of(frame.path).map(|_| 0),
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
            self.unit.stats.add(frame.path, call);
        }
        if frame.is_unit {
            self.end_unit();
            self.guess_unit();
        }
        drop(frame);
        self.resume();
    }
}
