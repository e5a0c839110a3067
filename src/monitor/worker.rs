//! The monitor's work: asks each source in turn, stores the sample and hands it on.
//!
//! One thread does this at a time. A thread that is stuck in a driver call cannot be ended from outside, so `threads` starts another
//! one in its place. The two share `Duty`: whose turn it is, and which sources the stuck thread still occupies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use super::callback::Callback;
use super::record::Record;
use super::sample::{Health, Sample};
use super::sink::Outlet;
use super::source::{Look, Source};
use super::watched::Watched;

/// A call that took longer than this has seen a state that is too old to be shown.
const LATE: Duration = Duration::from_secs(10);

type Listener = Callback<dyn FnMut(&Source, &Sample) + Send>;

/// What the monitor's handle and its threads share.
pub(super) struct Worker {
    pub(super) record: Arc<Record>,
    pub(super) listeners: Mutex<Vec<(Arc<AtomicBool>, Listener)>>,
    pub(super) failed_writes: AtomicU64,
    pub(super) duty: Mutex<Duty>,
    pub(super) changed: Condvar,
    outlets: Mutex<(Vec<Watched>, Vec<Outlet>)>,
    started: Instant,
    interval: Duration,
}

pub(super) struct Duty {
    /// The thread on duty. A replaced thread is detached.
    pub(super) thread: Option<JoinHandle<()>>,
    /// Counts the threads. A replaced thread ends when its call returns and the turn is not its own.
    pub(super) turn: u64,
    /// When the thread on duty began the driver call that it is in.
    pub(super) looking: Option<Instant>,
    pub(super) rounds: u64,
    pub(super) is_stopping: bool,
    /// One for each source.
    seats: Vec<Seat>,
}

struct Seat {
    /// `None` while a thread is in a call for this source.
    looker: Option<Box<dyn Look>>,
    since: Instant,
    /// The result of a call that returned after its thread was replaced.
    late: Option<Sample>,
}

impl Worker {
    pub(super) fn new(
        record: Record,
        lookers: Vec<Box<dyn Look>>,
        interval: Duration,
        thresholds: Vec<Watched>,
        sinks: Vec<Outlet>,
    ) -> Self {
        let started = Instant::now();
        let seats = lookers.into_iter().map(|looker| Seat {
            looker: Some(looker),
            since: started,
            late: None,
        });
        Self {
            record: Arc::new(record),
            listeners: Mutex::new(Vec::new()),
            failed_writes: AtomicU64::new(0),
            duty: Mutex::new(Duty {
                thread: None,
                turn: 0,
                looking: None,
                rounds: 0,
                is_stopping: false,
                seats: seats.collect(),
            }),
            changed: Condvar::new(),
            outlets: Mutex::new((thresholds, sinks)),
            started,
            interval,
        }
    }

    /// Samples once in each interval, as long as it is this thread's turn.
    pub(super) fn run(&self, turn: u64) {
        let mut next = self.started.elapsed();
        while self.round(turn) {
            next = following(next, self.interval, self.started.elapsed());
            let wait = next.saturating_sub(self.started.elapsed());
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

    /// Takes one sample of each source. Returns whether this thread goes on.
    fn round(&self, turn: u64) -> bool {
        let (at, taken) = (self.started.elapsed(), SystemTime::now());
        for index in 0..self.record.sources.len() {
            match self.look(turn, Sample::blank(index, taken, at)) {
                Some(sample) => self.publish(&sample),
                None => return false,
            }
        }
        let mut duty = self.duty.lock();
        duty.rounds += 1;
        if duty.rounds == 1 {
            // `Threads::start` waits for the first round.
            self.changed.notify_all();
        }
        true
    }

    /// Fills in a sample. Returns `None` if the monitor ends, or if another thread has taken over meanwhile.
    fn look(&self, turn: u64, mut sample: Sample) -> Option<Sample> {
        let began = Instant::now();
        let mut looker = {
            // The monitor sets `is_stopping` under this lock, so no call begins after that.
            let mut duty = self.duty.lock();
            if duty.is_stopping || duty.turn != turn {
                return None;
            }
            let seat = duty.seats.get_mut(sample.source)?;
            if let Some(late) = seat.late.take() {
                let (at, taken) = (sample.at, sample.taken);
                return Some(Sample { at, taken, ..late });
            }
            let Some(looker) = seat.looker.take() else {
                sample.health = Health::Hanging;
                sample.took = began.saturating_duration_since(seat.since);
                return Some(sample);
            };
            seat.since = began;
            duty.looking = Some(began);
            looker
        };
        looker.look(&mut sample);
        sample.took = began.elapsed();
        let mut duty = self.duty.lock();
        let is_late = duty.turn != turn;
        if let Some(seat) = duty.seats.get_mut(sample.source) {
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
        let before = self.record.push(sample);
        match (before, sample.health) {
            (Some(before), now) if before == now => {}
            (None, Health::Good) => {}
            (_, Health::Good) => tracing::info!("{source} answers again"),
            (_, health) => tracing::warn!("{source}: {health}"),
        }
        {
            let (thresholds, sinks) = &mut *self.outlets.lock();
            for threshold in thresholds {
                threshold.see(source, sample);
            }
            for sink in sinks {
                let is_lost = !sink.write(source, sample);
                self.failed_writes
                    .fetch_add(is_lost.into(), Ordering::Relaxed);
            }
        }
        // Taken out of the mutex, so that a listener may subscribe others.
        let mut listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.retain_mut(|(is_wanted, listener)| {
            if is_wanted.load(Ordering::Acquire) {
                listener.call(|listener| listener(source, sample));
            }
            is_wanted.load(Ordering::Acquire) && listener.is_alive()
        });
        let mut added = self.listeners.lock();
        listeners.append(&mut added);
        *added = listeners;
    }
}

/// The first multiple of the interval after `now`, counted from `last`. Samples that were missed, in a call that hung or on a
/// suspended machine, are not made up for.
fn following(last: Duration, interval: Duration, now: Duration) -> Duration {
    let missed = now.saturating_sub(last).as_nanos() / interval.as_nanos().max(1);
    let steps = u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1);
    last.saturating_add(interval.saturating_mul(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_samples_are_not_made_up_for() {
        let ms = Duration::from_millis;
        assert_eq!(following(ms(100), ms(10), ms(101)), ms(110));
        assert_eq!(following(ms(100), ms(10), ms(110)), ms(120));
        // Suspended for an hour.
        assert_eq!(following(ms(100), ms(10), ms(3_600_105)), ms(3_600_110));
        let long = Duration::from_secs(u64::MAX / 4);
        assert!(following(ms(0), Duration::from_nanos(1), long) > ms(0));
    }
}
