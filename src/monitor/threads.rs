//! Replaces the monitor's thread when it is stuck in a driver call.
//!
//! One thread for each GPU would need no replacement, but waking several threads for a sample instead of one costs more than the
//! sample (`monitor/core_percent_at_10_hertz`).

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::worker::Worker;

/// The time between two checks for a hanging call.
const ROUND: Duration = Duration::from_secs(1);
/// A call that takes longer hangs. A driver that wakes a sleeping GPU takes a large part of this.
const PATIENCE: Duration = Duration::from_millis(900);

/// The threads of a monitor; dropping this ends them.
pub(super) struct Threads {
    pub(super) worker: Arc<Worker>,
    watchdog: Option<JoinHandle<()>>,
}

impl Threads {
    /// Starts the threads and waits for the first sample of each source.
    pub(super) fn start(worker: Worker) -> io::Result<Self> {
        let worker = Arc::new(worker);
        worker.duty.lock().thread = Some(spawn(&worker, 0)?);
        let mut threads = Self {
            watchdog: None,
            worker: Arc::clone(&worker),
        };
        let watchdog = thread::Builder::new().name("headroom-watch".to_owned());
        threads.watchdog = Some(watchdog.spawn(move || watch(&worker))?);
        let (duty, changed) = (&threads.worker.duty, &threads.worker.changed);
        // Long enough to detect a call that hangs from the beginning.
        changed.wait_while_for(&mut duty.lock(), |duty| duty.rounds == 0, 3 * ROUND);
        Ok(threads)
    }
}

fn spawn(worker: &Arc<Worker>, turn: u64) -> io::Result<JoinHandle<()>> {
    let worker = Arc::clone(worker);
    let thread = thread::Builder::new().name("headroom-monitor".to_owned());
    thread.spawn(move || worker.run(turn))
}

fn watch(worker: &Arc<Worker>) {
    while !worker.is_stopped_within(ROUND) {
        let mut duty = worker.duty.lock();
        let hangs = duty
            .looking
            .is_some_and(|since| since.elapsed() >= PATIENCE);
        if duty.is_stopping || !hangs {
            continue;
        }
        duty.looking = None;
        duty.turn += 1;
        match spawn(worker, duty.turn) {
            Ok(thread) => duty.thread = Some(thread),
            Err(error) => {
                drop(duty);
                tracing::error!(%error, "the monitor has stopped: no thread can be started");
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut duty = self.worker.duty.lock();
        duty.is_stopping = true;
        self.worker.changed.notify_all();
        (self.worker.changed).wait_while_for(&mut duty, |duty| duty.looking.is_some(), PATIENCE);
        let thread = duty.thread.take().filter(|_| duty.looking.is_none());
        drop(duty);
        for thread in [thread, self.watchdog.take()].into_iter().flatten() {
            // A callback that drops the monitor runs on one of these threads, which cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
