//! The monitor's threads: one samples all sources, and one replaces it when it is stuck in a driver call, because a stuck thread cannot
//! be ended from outside. One thread for each GPU would need no replacement, but waking several threads for a sample costs more than
//! the sample (`monitor/core_percent_at_10_hertz`).

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use super::sample::{Health, Sample};
use super::sinks::{Output, SampleRecord};
use super::source::{Looker, Source};
use crate::error::{Result, invalid};

/// The time between two checks for a hanging call.
const ROUND: Duration = Duration::from_secs(1);
/// A call that takes longer hangs. A driver that wakes a sleeping GPU takes a large part of this.
const PATIENCE: Duration = Duration::from_millis(900);
/// The result of a call that took longer is too old to be shown.
const LATE: Duration = Duration::from_secs(10);

/// What the monitor's handle and its threads share.
pub(super) struct Worker {
    pub(super) samples: Arc<Samples>,
    pub(super) outputs: Mutex<Vec<Output>>,
    pub(super) failed_writes: AtomicU64,
    duty: Mutex<Duty>,
    changed: Condvar,
    started: Instant,
    interval: Duration,
}

/// Whose turn it is, and which sources a stuck thread still occupies.
#[derive(Default)]
struct Duty {
    /// The thread on duty. A replaced thread is detached.
    thread: Option<JoinHandle<()>>,
    /// Counts the threads. A replaced thread ends when its call returns and the turn is not its own.
    turn: u64,
    /// When the thread on duty began the driver call that it is in.
    looking: Option<Instant>,
    /// Each source has been sampled.
    is_ready: bool,
    is_stopping: bool,
    /// One for each source.
    seats: Vec<Seat>,
}

struct Seat {
    /// `None` while a thread is in a call.
    looker: Option<Looker>,
    /// When the last call began.
    since: Instant,
    /// The result of a call that returned after its thread was replaced.
    late: Option<Sample>,
}

impl Worker {
    pub(super) fn new(
        samples: Samples,
        lookers: Vec<Looker>,
        interval: Duration,
        outputs: Vec<Output>,
    ) -> Self {
        let started = Instant::now();
        let seats = lookers.into_iter().map(|looker| Seat {
            looker: Some(looker),
            since: started,
            late: None,
        });
        Self {
            samples: Arc::new(samples),
            outputs: Mutex::new(outputs),
            failed_writes: AtomicU64::new(0),
            duty: Mutex::new(Duty {
                seats: seats.collect(),
                ..Duty::default()
            }),
            changed: Condvar::new(),
            started,
            interval,
        }
    }

    /// Starts the threads and waits for the first sample of each source.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.put_on_duty(&mut self.duty.lock())?;
        let worker = Arc::clone(self);
        let watch = thread::Builder::new().name("headroom-watch".to_owned());
        watch.spawn(move || worker.watch())?;
        let mut duty = self.duty.lock();
        // Long enough to detect a call that hangs from the beginning.
        (self.changed).wait_while_for(&mut duty, |duty| !duty.is_ready, 3 * ROUND);
        Ok(())
    }

    /// Starts a sampling thread in place of the one on duty.
    fn put_on_duty(self: &Arc<Self>, duty: &mut Duty) -> io::Result<()> {
        duty.looking = None;
        // If none can be started, nobody waits for the one that hangs.
        duty.thread = None;
        duty.turn += 1;
        let (worker, turn) = (Arc::clone(self), duty.turn);
        let thread = thread::Builder::new().name("headroom-monitor".to_owned());
        duty.thread = Some(thread.spawn(move || worker.sample(turn))?);
        Ok(())
    }

    /// Ends the threads. Waits for the sampling thread, unless it is in a driver call that hangs.
    pub(super) fn stop(&self) {
        let mut duty = self.duty.lock();
        duty.is_stopping = true;
        self.changed.notify_all();
        (self.changed).wait_while_for(&mut duty, |duty| duty.looking.is_some(), PATIENCE);
        let thread = duty.thread.take().filter(|_| duty.looking.is_none());
        drop(duty);
        // A callback that drops the monitor runs on this thread, which cannot wait for itself.
        let this = thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != this) {
            let _ = thread.join();
        }
        // A thread that still hangs keeps no sink alive.
        let _outputs = mem::take(&mut *self.outputs.lock());
    }

    /// Replaces the sampling thread when it hangs.
    fn watch(self: &Arc<Self>) {
        while !self.is_stopped_within(ROUND) {
            let mut duty = self.duty.lock();
            let in_call = duty.looking.map(|since| since.elapsed());
            if !duty.is_stopping
                && in_call >= Some(PATIENCE)
                && let Err(error) = self.put_on_duty(&mut duty)
            {
                drop(duty);
                tracing::error!(%error, "the monitor has stopped: no thread can be started");
            }
        }
    }

    fn is_stopped_within(&self, time: Duration) -> bool {
        let mut duty = self.duty.lock();
        (self.changed).wait_while_for(&mut duty, |duty| !duty.is_stopping, time);
        duty.is_stopping
    }

    /// Samples once in each interval, as long as it is this thread's turn.
    fn sample(&self, turn: u64) {
        loop {
            let (at, taken) = (self.started.elapsed(), SystemTime::now());
            for (index, source) in self.samples.sources.iter().enumerate() {
                let Some(sample) = self.look(turn, Sample::blank(index, taken, at)) else {
                    return;
                };
                self.samples.push(source, &sample);
                self.send(source, &sample);
            }
            if !mem::replace(&mut self.duty.lock().is_ready, true) {
                self.changed.notify_all();
            }
            if self.is_stopped_within(until_next(self.interval, self.started.elapsed())) {
                return;
            }
        }
    }

    fn send(&self, source: &Source, sample: &Sample) {
        // Taken out of the mutex, which a callback that drops the monitor locks.
        let mut outputs = mem::take(&mut *self.outputs.lock());
        let received = outputs.iter_mut().map(|output| output.send(source, sample));
        let failed = received.filter(|is_received| !is_received).count() as u64;
        self.failed_writes.fetch_add(failed, Ordering::Relaxed);
        *self.outputs.lock() = outputs;
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
                let Sample { at, taken, .. } = sample;
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
        looker(&mut sample);
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
}

/// The time until the next multiple of the interval. Samples that were missed, in a call that hung or on a suspended machine, are
/// not made up for.
fn until_next(interval: Duration, now: Duration) -> Duration {
    let passed = now.as_nanos() % interval.as_nanos().max(1);
    interval.saturating_sub(Duration::from_nanos(passed as u64))
}

/// The sources and their latest samples. Separate from the worker, so that an incident log keeps no sink or driver alive.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(super) sources: Vec<Source>,
    /// For each source, oldest first.
    pub(super) rings: Mutex<Vec<VecDeque<Sample>>>,
    /// The most samples in each ring.
    most: usize,
}

impl Samples {
    pub(super) fn new(sources: Vec<Source>, most: usize) -> Result<Self> {
        let mut rings = vec![VecDeque::new(); sources.len()];
        for ring in &mut rings {
            let reserved = ring.try_reserve_exact(most);
            reserved.map_err(|_| {
                invalid!(
                    Monitor,
                    "`history` of {most} samples, each about 400 bytes, does not fit into memory: keep fewer"
                )
            })?;
        }
        Ok(Self {
            rings: Mutex::new(rings),
            sources,
            most,
        })
    }

    /// Stores a sample without allocating, and logs a change of health.
    pub(super) fn push(&self, source: &Source, sample: &Sample) {
        let mut rings = self.rings.lock();
        let Some(ring) = rings.get_mut(sample.source) else {
            return;
        };
        let before = ring.back().map_or(Health::Good, |last| last.health);
        if ring.len() >= self.most {
            ring.pop_front();
        }
        ring.push_back(*sample);
        // Logged after the lock is released, because a subscriber of `tracing` may use the monitor.
        drop(rings);
        match sample.health {
            health if health == before => {}
            Health::Good => tracing::info!("{source} answers again"),
            health => tracing::warn!("{source}: {health}"),
        }
    }

    /// The last samples of each source, oldest first.
    pub(crate) fn last(&self, count: usize) -> Vec<SampleRecord> {
        let rings = self.rings.lock();
        let pairs = self.sources.iter().zip(rings.iter());
        let last = pairs.flat_map(|(source, ring)| {
            let samples = ring.iter().skip(ring.len().saturating_sub(count));
            samples.map(move |sample| SampleRecord::of(source, sample))
        });
        last.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_samples_are_not_made_up_for() {
        let ms = Duration::from_millis;
        assert_eq!(until_next(ms(10), ms(101)), ms(9));
        assert_eq!(until_next(ms(10), ms(110)), ms(10));
        // Suspended for an hour.
        assert_eq!(until_next(ms(10), ms(3_600_105)), ms(5));
        assert_eq!(until_next(Duration::MAX, ms(1)), Duration::MAX - ms(1));
    }
}
