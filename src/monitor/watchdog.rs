//! What becomes of a call that does not come back. A thread cannot be ended from outside, so another one takes its place: it shows
//! the source as hanging and goes on with the others, until the call returns, if ever.
//!
//! A thread for each GPU would do as well, but waking three threads for a sample instead of one costs more than the sample.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::keeper::Keeper;

/// How often it is looked whether a call hangs.
const ROUND: Duration = Duration::from_secs(1);
/// The least time that a call must have taken for that: drivers take their time, above all when they were asleep.
const PATIENCE: Duration = Duration::from_millis(900);

/// The threads of a monitor.
pub(super) struct Threads {
    keeper: Arc<Keeper>,
    watchdog: Option<JoinHandle<()>>,
    /// Of the thread on duty.
    on_duty: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Threads {
    /// Starts them, and waits for the first sample of each source.
    pub(super) fn start(keeper: Arc<Keeper>) -> io::Result<Self> {
        let mut threads = Self {
            on_duty: Arc::new(Mutex::new(Some(spawn(&keeper, 0)?))),
            watchdog: None,
            keeper,
        };
        let (keeper, on_duty) = (Arc::clone(&threads.keeper), Arc::clone(&threads.on_duty));
        let watchdog = thread::Builder::new().name("headroom-watch".to_owned());
        threads.watchdog = Some(watchdog.spawn(move || watch(&keeper, &on_duty))?);
        let mut duty = threads.keeper.duty.lock();
        // A call that hangs from the beginning is found out before this is over.
        let patience = 3 * ROUND;
        let changed = &threads.keeper.changed;
        changed.wait_while_for(&mut duty, |duty| duty.rounds == 0, patience);
        drop(duty);
        Ok(threads)
    }
}

fn spawn(keeper: &Arc<Keeper>, turn: u64) -> io::Result<JoinHandle<()>> {
    let keeper = Arc::clone(keeper);
    let thread = thread::Builder::new().name("headroom-monitor".to_owned());
    thread.spawn(move || keeper.run(turn))
}

fn watch(keeper: &Arc<Keeper>, on_duty: &Mutex<Option<JoinHandle<()>>>) {
    while !keeper.is_stopped_within(ROUND) {
        let turn = {
            let mut duty = keeper.duty.lock();
            let now = keeper.clock.elapsed();
            let hangs = |since: Duration| now.saturating_sub(since) >= PATIENCE;
            if !duty.looking.is_some_and(hangs) {
                continue;
            }
            duty.looking = None;
            duty.turn += 1;
            duty.turn
        };
        match spawn(keeper, turn) {
            // The former one is left to itself.
            Ok(thread) => *on_duty.lock() = Some(thread),
            Err(error) => {
                tracing::error!(%error, "the monitor has stopped: no thread can be started")
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        {
            let mut duty = self.keeper.duty.lock();
            duty.is_stopping = true;
            self.keeper.changed.notify_all();
        }
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        let joined = |thread: JoinHandle<()>| {
            // A callback that drops the monitor cannot wait for itself. Nothing of the caller's can panic there.
            if !is_own(&thread) {
                let _ = thread.join();
            }
        };
        self.watchdog.take().map(joined);
        let thread = self.on_duty.lock().take();
        let mut duty = self.keeper.duty.lock();
        let looks = |duty: &mut super::keeper::Duty| duty.looking.is_some();
        self.keeper
            .changed
            .wait_while_for(&mut duty, looks, PATIENCE);
        let hangs = duty.looking.is_some();
        drop(duty);
        thread.filter(|_| !hangs).map(joined);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::monitor::keeper::{Listener, Outlets};
    use crate::monitor::record::Record;
    use crate::monitor::source::{Look, MachineClock};
    use crate::monitor::{Sample, Source};

    /// A GPU that hangs once it is told to.
    struct Hanging(Arc<AtomicBool>);

    impl Look for Hanging {
        fn look(&mut self, _: &mut Sample) {
            let began = Instant::now();
            while self.0.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn no_call_begins_once_the_monitor_ends() {
        let [never, hangs] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let gpu = || Source {
            name: "GPU".to_owned(),
            uuid: None,
            cuda: None,
        };
        let record = Record::new(vec![gpu(), gpu()], 10).unwrap();
        let lookers: Vec<Box<dyn Look>> = vec![
            Box::new(Hanging(never)),
            Box::new(Hanging(Arc::clone(&hangs))),
        ];
        let clock = MachineClock(Instant::now());
        let interval = Duration::from_millis(5);
        let keeper = Keeper::new(record, lookers, clock, interval, Outlets::default());
        let keeper = Arc::new(keeper);
        let threads = Threads::start(Arc::clone(&keeper)).unwrap();
        // The end comes while a listener is told of the first GPU, and the second one hangs by then.
        let (send, receive) = mpsc::channel();
        let hung = Arc::clone(&hangs);
        let listener = move |_: &Source, sample: &Sample| {
            if sample.source == 0 && !hung.swap(true, Ordering::Relaxed) {
                send.send(()).unwrap();
                thread::sleep(Duration::from_millis(300));
            }
        };
        let is_wanted = Arc::new(AtomicBool::new(true));
        let listener: Listener = Box::new(listener);
        keeper.listeners.lock().push((is_wanted, Some(listener)));
        receive.recv().unwrap();
        let began = Instant::now();
        drop(threads);
        let took = began.elapsed();
        hangs.store(false, Ordering::Relaxed);
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}
