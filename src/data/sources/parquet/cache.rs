use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// Values by number, of which those used last are kept up to a number of bytes, and at least one.
#[derive(Debug)]
pub(super) struct Cache<V> {
    room: u64,
    /// The one used last is the first.
    entries: Mutex<VecDeque<Entry<V>>>,
}

/// Locked while its value is loaded, so that other threads that need it wait instead of loading it too.
type Slot<V> = Arc<Mutex<Option<Arc<V>>>>;

#[derive(Debug)]
struct Entry<V> {
    key: usize,
    /// 0 until it is loaded.
    bytes: u64,
    slot: Slot<V>,
}

impl<V> Cache<V> {
    pub fn new(room: u64) -> Self {
        Self {
            room,
            entries: Mutex::new(VecDeque::new()),
        }
    }

    /// Returns a value that is kept, or loads it. `load` returns the value and its bytes.
    pub fn get<E>(
        &self,
        key: usize,
        load: impl FnOnce() -> Result<(V, u64), E>,
    ) -> Result<Arc<V>, E> {
        let slot = self.slot(key);
        let mut kept = slot.lock();
        if let Some(value) = &*kept {
            return Ok(Arc::clone(value));
        }
        let (value, bytes) = load()?;
        let value = Arc::new(value);
        *kept = Some(Arc::clone(&value));
        drop(kept);
        self.evict(key, bytes);
        Ok(value)
    }

    fn slot(&self, key: usize) -> Slot<V> {
        let mut entries = self.entries.lock();
        let at = entries.iter().position(|entry| entry.key == key);
        let entry = at
            .and_then(|at| entries.remove(at))
            .unwrap_or_else(|| Entry {
                key,
                bytes: 0,
                slot: Arc::default(),
            });
        let slot = Arc::clone(&entry.slot);
        entries.push_front(entry);
        slot
    }

    /// Counts a loaded value and drops those that were not used for the longest time.
    fn evict(&self, key: usize, bytes: u64) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) {
            entry.bytes = bytes;
        }
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        while total > self.room && entries.len() > 1 {
            total -= entries.pop_back().map_or(0, |entry| entry.bytes);
        }
    }
}
