//! What all handles of a `LayerMemory` share, and the threads that it has seen.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::claims::{Claims, SpanKey};
use super::tracker::{Key, Tracker};
use super::unit::Unit;
use crate::memory::DeviceMemory;

#[derive(Debug)]
pub(super) struct Shared {
    number: u64,
    pub(super) memory: DeviceMemory,
    claims: Mutex<Claims>,
    /// The threads that entered something.
    trackers: Mutex<Vec<Arc<Mutex<Tracker>>>>,
    layers: AtomicU32,
}

/// All that live, for the phases of trainers.
static ALL: RwLock<Vec<Weak<Shared>>> = RwLock::new(Vec::new());
/// Their number, which is all that is read where there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's, by the number of the shared state.
    static TRACKERS: RefCell<Vec<(u64, Weak<Mutex<Tracker>>)>> = const { RefCell::new(Vec::new()) };
}

impl Shared {
    pub(super) fn new(memory: DeviceMemory) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Self {
            number: NEXT.fetch_add(1, Relaxed),
            memory,
            claims: Mutex::default(),
            trackers: Mutex::default(),
            layers: AtomicU32::new(0),
        });
        let mut all = ALL.write();
        all.retain(|shared| shared.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        drop(all);
        COUNT.fetch_add(1, Relaxed);
        shared
    }

    /// A number for one more subscriber, whose spans have numbers of their own.
    pub(super) fn next_layer(&self) -> u32 {
        self.layers.fetch_add(1, Relaxed)
    }

    pub(super) fn enter(&self, span: SpanKey, name: impl FnOnce() -> Option<&'static str>) {
        let Some(name) = name() else { return };
        self.on_this_thread(|tracker| {
            tracker.enter(Key::Span(span.0, span.1), name, |around, from| {
                let mut claims = self.claims.lock();
                match claims.known(span, around) {
                    Some(path) => (path, None),
                    None => {
                        let (path, number) = claims.claim(span, around, name, from);
                        (path, Some(number))
                    }
                }
            });
        });
    }

    pub(super) fn exit(&self, span: SpanKey) {
        self.on_this_thread(|tracker| tracker.leave(Key::Span(span.0, span.1)));
    }

    pub(super) fn close(&self, span: SpanKey) {
        self.claims.lock().close(span);
    }

    /// Runs `work` with this thread's state. While the thread ends, nothing is tracked any more.
    pub(super) fn on_this_thread<T>(&self, work: impl FnOnce(&mut Tracker) -> T) -> Option<T> {
        let known = TRACKERS.try_with(|trackers| {
            let trackers = trackers.try_borrow().ok()?;
            let own = trackers.iter().find(|(number, _)| *number == self.number)?;
            own.1.upgrade()
        });
        let tracker = match known.ok()? {
            Some(tracker) => tracker,
            None => self.begin_thread()?,
        };
        let mut tracker = tracker.lock();
        Some(work(&mut tracker))
    }

    #[cold]
    fn begin_thread(&self) -> Option<Arc<Mutex<Tracker>>> {
        let tracker = Arc::new(Mutex::new(Tracker::new(&self.memory, self.number)));
        let known = TRACKERS.try_with(|trackers| {
            let mut trackers = trackers.try_borrow_mut().ok()?;
            trackers.retain(|(_, tracker)| tracker.strong_count() > 0);
            trackers.push((self.number, Arc::downgrade(&tracker)));
            Some(())
        });
        known.ok()??;
        let mut trackers = self.trackers.lock();
        // Of threads that have ended, one is enough.
        let mut latest: Option<Arc<Mutex<Tracker>>> = None;
        trackers.retain(|tracker| {
            let is_alive = Arc::weak_count(tracker) > 0;
            if !is_alive {
                latest = Some(match latest.take() {
                    Some(other) => later(other, tracker.clone()),
                    None => tracker.clone(),
                });
            }
            is_alive
        });
        trackers.extend(latest);
        trackers.push(tracker.clone());
        Some(tracker)
    }

    /// Runs `work` with the state of the thread that finished a piece of work last, or of one that has only begun.
    pub(super) fn on_latest_thread<T>(&self, work: impl FnOnce(&mut Tracker) -> T) -> Option<T> {
        let trackers = self.trackers.lock();
        let latest = trackers.iter().max_by_key(|tracker| tracker.lock().rank());
        let latest = latest?.clone();
        drop(trackers);
        let mut latest = latest.lock();
        Some(work(&mut latest))
    }

    /// The step with the highest use of all threads.
    pub(super) fn highest(&self) -> Option<Unit> {
        let trackers = self.trackers.lock();
        let highest = trackers
            .iter()
            .max_by_key(|tracker| tracker.lock().highest.rank());
        highest.map(|tracker| tracker.lock().highest.clone())
    }
}

/// The later one of two threads that have ended, with the highest use of both.
fn later(a: Arc<Mutex<Tracker>>, b: Arc<Mutex<Tracker>>) -> Arc<Mutex<Tracker>> {
    let is_earlier = a.lock().rank() <= b.lock().rank();
    let (earlier, later) = match is_earlier {
        true => (a, b),
        false => (b, a),
    };
    let highest = std::mem::take(&mut earlier.lock().highest);
    later.lock().take_highest(highest);
    later
}

impl Drop for Shared {
    fn drop(&mut self) {
        // `ALL` may be locked here: `for_each` may hold the last reference. The next new one clears it up.
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// Whether there are any.
#[inline]
pub(super) fn are_any() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Calls `work` for all.
pub(super) fn for_each(mut work: impl FnMut(&Shared)) {
    let all = ALL.read();
    for shared in all.iter().filter_map(Weak::upgrade) {
        work(&shared);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_reference_may_go_while_all_are_called() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let memory = DeviceMemory::host().open().unwrap();
            let shared = Shared::new(memory);
            let number = shared.number;
            let mut only = Some(shared);
            for_each(|shared| {
                if shared.number == number {
                    only = None;
                }
            });
            done.send(only.is_none()).unwrap();
        });
        // It takes no time, unless it waits for itself.
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(true));
    }
}
