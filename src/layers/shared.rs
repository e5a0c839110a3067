//! What the handles of a `LayerMemory` share, the threads that it has seen, and which one measures.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::path::{Claims, SpanKey};
use super::tracker::{Key, Tracker};
use crate::memory::DeviceMemory;

#[derive(Debug)]
pub(super) struct Shared {
    /// Counted from 1.
    number: u64,
    pub(super) memory: DeviceMemory,
    claims: Mutex<Claims>,
    /// The threads that entered something.
    trackers: Mutex<Vec<Arc<Mutex<Tracker>>>>,
    layers: AtomicU32,
}

/// The number of the newest `Shared`, which is the one that measures, or 0 if there is none. Code that finds 0 reads nothing else.
static ACTIVE: AtomicU64 = AtomicU64::new(0);
/// The same one, for the phases of trainers.
static NEWEST: RwLock<Weak<Shared>> = RwLock::new(Weak::new());

thread_local! {
    /// This thread's state, and the number of the shared state that it belongs to.
    static TRACKER: RefCell<(u64, Weak<Mutex<Tracker>>)> = const { RefCell::new((0, Weak::new())) };
}

/// The one that measures, if any.
#[inline]
pub(super) fn active() -> Option<Arc<Shared>> {
    (ACTIVE.load(Relaxed) > 0).then(|| NEWEST.read().upgrade())?
}

impl Shared {
    /// Measures in place of the one before.
    pub(super) fn new(memory: DeviceMemory) -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Self {
            number: LAST.fetch_add(1, Relaxed) + 1,
            memory,
            claims: Mutex::default(),
            trackers: Mutex::default(),
            layers: AtomicU32::new(0),
        });
        let mut newest = NEWEST.write();
        *newest = Arc::downgrade(&shared);
        ACTIVE.store(shared.number, Relaxed);
        drop(newest);
        shared
    }

    pub(super) fn is_active(&self) -> bool {
        ACTIVE.load(Relaxed) == self.number
    }

    /// A number for one more subscriber, whose spans have numbers of their own.
    pub(super) fn next_layer(&self) -> u32 {
        self.layers.fetch_add(1, Relaxed)
    }

    pub(super) fn enter(&self, span: SpanKey, name: impl FnOnce() -> Option<&'static str>) {
        let Some(name) = name() else { return };
        self.on_this_thread(|tracker| {
            tracker.enter(Key::Span(span), name, |around, from| {
                self.claims.lock().claim(span, around, name, from)
            });
        });
    }

    pub(super) fn exit(&self, span: SpanKey) {
        self.on_this_thread(|tracker| tracker.leave(Key::Span(span)));
    }

    pub(super) fn close(&self, span: SpanKey) {
        self.claims.lock().close(span);
    }

    /// Runs `work` with this thread's state, if this is the one that measures. While the thread ends, nothing is tracked any more.
    pub(super) fn on_this_thread<T>(&self, work: impl FnOnce(&mut Tracker) -> T) -> Option<T> {
        if !self.is_active() {
            return None;
        }
        let known = TRACKER.try_with(|known| {
            let known = known.try_borrow().ok()?;
            known.1.upgrade().filter(|_| known.0 == self.number)
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
        let known = TRACKER.try_with(|known| {
            *known.try_borrow_mut().ok()? = (self.number, Arc::downgrade(&tracker));
            Some(())
        });
        known.ok()??;
        let mut trackers = self.trackers.lock();
        let all = std::mem::take(&mut *trackers).into_iter();
        let (alive, ended): (Vec<_>, Vec<_>) = all.partition(|one| Arc::weak_count(one) > 0);
        *trackers = alive;
        // Of threads that have ended, one is enough.
        trackers.extend(ended.into_iter().max_by_key(|one| one.lock().rank()));
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
}

impl Drop for Shared {
    fn drop(&mut self) {
        // It fails if a newer one measures.
        let _ = ACTIVE.compare_exchange(self.number, 0, Relaxed, Relaxed);
    }
}
