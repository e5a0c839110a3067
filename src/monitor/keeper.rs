//! The monitor's work: asks in turn, keeps, tells. One thread does it at a time; see `watchdog` for what happens when that hangs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::record::Record;
use super::sink::Outlet;
use super::source::{Clock, Look, Source};
use super::watched::Watched;
use super::{Health, Sample};

/// A sample that took longer than this is worth nothing any more: it was seen too long ago.
const LATE: Duration = Duration::from_secs(10);

pub(super) type Listener = Box<dyn FnMut(&Source, &Sample) + Send>;

/// All that the monitor's handle and its threads share.
pub(super) struct Keeper {
    pub(super) record: Arc<Record>,
    pub(super) clock: Box<dyn Clock>,
    pub(super) interval: Duration,
    pub(super) listeners: Mutex<Vec<(Arc<AtomicBool>, Option<Listener>)>>,
    pub(super) outlets: Mutex<Outlets>,
    pub(super) failed_writes: AtomicU64,
    /// Who looks at each source; whoever does so has the looker with him.
    seats: Mutex<Vec<Seat>>,
    pub(super) duty: Mutex<Duty>,
    pub(super) changed: Condvar,
}

/// Whom each sample goes to, apart from listeners.
#[derive(Default)]
pub(super) struct Outlets {
    pub(super) watched: Vec<Watched>,
    pub(super) sinks: Vec<Outlet>,
}

struct Seat {
    looker: Option<Box<dyn Look>>,
    since: Duration,
    /// What a call saw that came back after another thread had taken over.
    late: Option<Sample>,
}

/// What the threads tell each other.
#[derive(Debug, Default)]
pub(super) struct Duty {
    /// Which thread is on duty: others end when they come back from a call that hung.
    pub(super) turn: u64,
    /// Since when it is in a call that may not come back.
    pub(super) looking: Option<Duration>,
    pub(super) rounds: u64,
    pub(super) is_stopping: bool,
}

impl Keeper {
    pub(super) fn new(
        record: Record,
        lookers: Vec<Box<dyn Look>>,
        clock: impl Clock + 'static,
        interval: Duration,
        outlets: Outlets,
    ) -> Self {
        let seats = lookers.into_iter().map(|looker| Seat {
            looker: Some(looker),
            since: Duration::ZERO,
            late: None,
        });
        Self {
            record: Arc::new(record),
            clock: Box::new(clock),
            interval,
            listeners: Mutex::new(Vec::new()),
            outlets: Mutex::new(outlets),
            failed_writes: AtomicU64::new(0),
            seats: Mutex::new(seats.collect()),
            duty: Mutex::new(Duty::default()),
            changed: Condvar::new(),
        }
    }

    /// Samples at each moment of the grid, as long as it is this thread's turn.
    pub(super) fn run(&self, turn: u64) {
        let mut next = self.clock.elapsed();
        while self.round(turn) {
            next = following(next, self.interval, self.clock.elapsed());
            let wait = next.saturating_sub(self.clock.elapsed());
            if self.is_stopped_within(wait) {
                return;
            }
        }
    }

    pub(super) fn is_stopped_within(&self, time: Duration) -> bool {
        let mut duty = self.duty.lock();
        (self.changed).wait_while_for(&mut duty, |duty| !duty.is_stopping, time);
        duty.is_stopping
    }

    /// One sample of each source; whether this thread is to go on.
    pub(super) fn round(&self, turn: u64) -> bool {
        let (at, taken) = (self.clock.elapsed(), self.clock.wall());
        for index in 0..self.record.sources.len() {
            let blank = Sample::blank(index, taken, at);
            match self.look(turn, blank) {
                Some(sample) => self.publish(&sample),
                None => return false,
            }
        }
        let mut duty = self.duty.lock();
        duty.rounds += 1;
        if duty.rounds == 1 {
            // Whoever starts a monitor waits for it.
            self.changed.notify_all();
        }
        true
    }

    /// Fills in a sample; `None` where the monitor ends, or the call took so long that another thread has gone on meanwhile.
    fn look(&self, turn: u64, mut sample: Sample) -> Option<Sample> {
        let began = self.clock.elapsed();
        let mut looker = {
            // Whoever ends the monitor says so under this lock: from then on no call begins that might not come back.
            let mut duty = self.duty.lock();
            if duty.is_stopping || duty.turn != turn {
                return None;
            }
            let mut seats = self.seats.lock();
            let seat = seats.get_mut(sample.source)?;
            if let Some(late) = seat.late.take() {
                let (at, taken) = (sample.at, sample.taken);
                return Some(Sample { at, taken, ..late });
            }
            let Some(looker) = seat.looker.take() else {
                // A former thread has not come back from there.
                sample.health = Health::Hanging;
                sample.took = began.saturating_sub(seat.since);
                return Some(sample);
            };
            seat.since = began;
            duty.looking = Some(began);
            looker
        };
        looker.look(&mut sample);
        sample.took = self.clock.elapsed().saturating_sub(began);
        let mut duty = self.duty.lock();
        let is_late = duty.turn != turn;
        if let Some(seat) = self.seats.lock().get_mut(sample.source) {
            seat.looker = Some(looker);
            seat.late = (is_late && sample.took < LATE).then_some(sample);
        }
        if is_late {
            return None;
        }
        duty.looking = None;
        if duty.is_stopping {
            self.changed.notify_all();
        }
        Some(sample)
    }

    fn publish(&self, sample: &Sample) {
        let Some(source) = self.record.sources.get(sample.source) else {
            return;
        };
        let before = self.record.keep(sample);
        if before != Some(sample.health) && (before.is_some() || sample.health != Health::Good) {
            match sample.health {
                Health::Good => tracing::info!("{source} answers again"),
                health => tracing::warn!("{source}: {health}"),
            }
        }
        {
            let mut outlets = self.outlets.lock();
            for watched in &mut outlets.watched {
                watched.see(source, sample);
            }
            for sink in &mut outlets.sinks {
                if !sink.write(source, sample) {
                    self.failed_writes.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        // Taken out, so that a listener may add others.
        let mut listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.retain_mut(|(is_wanted, listener)| {
            if is_wanted.load(Ordering::Acquire) {
                guard(listener, |listener| listener(source, sample));
            }
            is_wanted.load(Ordering::Acquire) && listener.is_some()
        });
        let mut added = self.listeners.lock();
        listeners.append(&mut added);
        *added = listeners;
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

/// Calls what the caller gave. If it panics it is dropped and not called again, and the monitor goes on.
pub(super) fn guard<F: ?Sized>(given: &mut Option<Box<F>>, call: impl FnOnce(&mut F)) {
    if let Some(called) = given {
        // What it leaves half-done is its own: it is dropped at once.
        if catch_unwind(AssertUnwindSafe(|| call(called))).is_err() {
            tracing::error!(
                "a callback or sink of the monitor panicked and is not called any more"
            );
            let dropped = given.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
        }
    }
}
