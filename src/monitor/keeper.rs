//! The monitor's own thread: asks in turn, keeps, tells.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::desk::Desk;
use super::sink::{Outlet, Sink};
use super::source::{Clock, Look, Source};
use super::threshold::Watched;
use super::{Health, Sample};

/// The least time that a call may take before it is said to hang: NVML measures traffic for 40 ms, and a busy machine is slow.
const PATIENCE: Duration = Duration::from_millis(250);

pub(super) type Listener = Box<dyn FnMut(&Source, &Sample) + Send>;

/// What the handle and the thread share.
pub(super) struct Shared {
    pub(super) sources: Vec<Source>,
    /// For each source, the oldest first.
    pub(super) history: Mutex<Vec<VecDeque<Sample>>>,
    most: usize,
    pub(super) listeners: Mutex<Vec<(Arc<AtomicBool>, Option<Listener>)>>,
    pub(super) rounds: AtomicU64,
    pub(super) failed_writes: AtomicU64,
    stopping: Mutex<bool>,
    changed: Condvar,
}

/// Who looks at a source.
pub(super) enum Seat {
    /// In this thread: a call that returns at once.
    Here(Box<dyn Look>),
    There(Desk),
}

pub(super) struct Keeper {
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Box<dyn Clock>,
    pub(super) interval: Duration,
    pub(super) seats: Vec<Seat>,
    pub(super) watched: Vec<Watched>,
    pub(super) sinks: Vec<Outlet>,
}

impl Shared {
    pub(super) fn new(sources: Vec<Source>, history: usize) -> Self {
        let rings = sources.iter().map(|_| VecDeque::with_capacity(history));
        Self {
            history: Mutex::new(rings.collect()),
            most: history,
            sources,
            listeners: Mutex::new(Vec::new()),
            rounds: AtomicU64::new(0),
            failed_writes: AtomicU64::new(0),
            stopping: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    pub(super) fn stop(&self) {
        *self.stopping.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until so many rounds were made, or `patience` is over.
    pub(super) fn wait_for_round(&self, round: u64, patience: Duration) {
        let mut stopping = self.stopping.lock();
        let lacks = |stopping: &mut bool| !*stopping && self.rounds.load(Ordering::Acquire) < round;
        self.changed.wait_while_for(&mut stopping, lacks, patience);
    }

    fn is_stopped_within(&self, time: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        self.changed
            .wait_while_for(&mut stopping, |stopping| !*stopping, time);
        *stopping
    }
}

impl Keeper {
    pub(super) fn run(mut self) {
        let mut next = self.clock.elapsed();
        loop {
            self.round();
            next = following(next, self.interval, self.clock.elapsed());
            let wait = next.saturating_sub(self.clock.elapsed());
            if self.shared.is_stopped_within(wait) {
                return;
            }
        }
    }

    /// One sample of each source.
    pub(super) fn round(&mut self) {
        let (at, taken) = (self.clock.elapsed(), self.clock.wall());
        let patience = self.interval.max(PATIENCE);
        for (index, seat) in self.seats.iter().enumerate() {
            if let Seat::There(desk) = seat {
                desk.ask(Sample::blank(index, taken, at));
            }
        }
        for index in 0..self.seats.len() {
            let blank = Sample::blank(index, taken, at);
            let sample = match self.seats.get_mut(index) {
                Some(Seat::There(desk)) => {
                    let spent = self.clock.elapsed().saturating_sub(at);
                    desk.answer(blank, patience.saturating_sub(spent))
                }
                Some(Seat::Here(looker)) => {
                    let (mut sample, began) = (blank, self.clock.elapsed());
                    looker.look(&mut sample);
                    sample.took = self.clock.elapsed().saturating_sub(began);
                    sample
                }
                None => return,
            };
            self.publish(&sample);
        }
        self.shared.rounds.fetch_add(1, Ordering::Release);
        // The lock is held so that nobody begins to wait between looking at the number and this.
        let _stopping = self.shared.stopping.lock();
        self.shared.changed.notify_all();
    }

    fn publish(&mut self, sample: &Sample) {
        let shared = &self.shared;
        let Some(source) = shared.sources.get(sample.source) else {
            return;
        };
        let before = self.keep(sample);
        if before != Some(sample.health) && (before.is_some() || sample.health != Health::Good) {
            match sample.health {
                Health::Good => tracing::info!("{source} answers again"),
                health => tracing::warn!("{source}: {health}"),
            }
        }
        for watched in &mut self.watched {
            watched.see(source, sample);
        }
        for sink in &mut self.sinks {
            if !sink.write(source, sample) {
                shared.failed_writes.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Taken out, so that a listener may add others.
        let mut listeners = std::mem::take(&mut *shared.listeners.lock());
        listeners.retain_mut(|(is_wanted, listener)| {
            if is_wanted.load(Ordering::Acquire) {
                guard(listener, |listener| listener(source, sample));
            }
            is_wanted.load(Ordering::Acquire) && listener.is_some()
        });
        let mut added = shared.listeners.lock();
        listeners.append(&mut added);
        *added = listeners;
    }

    /// Puts the sample into the ring; its capacity was reserved, so nothing is allocated. Returns the health of the one before.
    fn keep(&self, sample: &Sample) -> Option<Health> {
        let mut history = self.shared.history.lock();
        let ring = history.get_mut(sample.source)?;
        let before = ring.back().map(|last| last.health);
        if ring.len() >= self.shared.most {
            ring.pop_front();
        }
        ring.push_back(*sample);
        before
    }
}

impl Outlet {
    pub(super) fn new(sink: impl Sink + 'static) -> Self {
        Self {
            sink: Box::new(sink),
            is_failing: false,
        }
    }
}

/// The next moment of the grid after `now`: what was slept through, in a call that hung or on a machine that was suspended, is
/// not made up for.
pub(super) fn following(last: Duration, interval: Duration, now: Duration) -> Duration {
    let next = last.saturating_add(interval);
    if next > now {
        return next;
    }
    let missed = now.saturating_sub(last).as_nanos() / interval.as_nanos().max(1);
    let missed = u32::try_from(missed).unwrap_or(u32::MAX);
    last.saturating_add(interval.saturating_mul(missed))
        .saturating_add(interval)
}

/// Calls what the caller gave. If it panics it is not called again, and the monitor goes on.
pub(super) fn guard<F: ?Sized>(callback: &mut Option<Box<F>>, call: impl FnOnce(&mut F)) {
    if let Some(given) = callback {
        // What it leaves half-done is its own: it is dropped at once.
        if catch_unwind(AssertUnwindSafe(|| call(given))).is_err() {
            tracing::error!("a callback of the monitor panicked and is not called any more");
            *callback = None;
        }
    }
}
