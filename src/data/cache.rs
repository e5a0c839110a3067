use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Values by a key, of which those used last are kept up to a number of bytes, and at least one.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    room: u64,
    /// The one used last is the first.
    entries: Mutex<VecDeque<(K, Arc<Entry<V>>)>>,
}

#[derive(Debug)]
struct Entry<V> {
    /// Locked while it is loaded, so that other threads that need it wait instead of loading it too.
    value: Mutex<Option<Arc<V>>>,
    /// 0 until it is loaded.
    bytes: AtomicU64,
}

impl<K: Copy + PartialEq, V> Cache<K, V> {
    pub(crate) fn new(room: u64) -> Self {
        let entries = Mutex::default();
        Self { room, entries }
    }

    /// Returns a value that is kept, or loads it. `load` returns the value and its bytes, at least one.
    pub(crate) fn get<E>(
        &self,
        key: K,
        load: impl FnOnce() -> Result<(V, u64), E>,
    ) -> Result<Arc<V>, E> {
        let entry = self.entry(key);
        let mut kept = entry.value.lock();
        if let Some(value) = &*kept {
            return Ok(Arc::clone(value));
        }
        let loaded = load();
        // Others that wait for it, and load it next, hold its entry too.
        let is_needed = |it: &(K, _)| it.0 != key || Arc::strong_count(&it.1) > 2;
        let (value, bytes) = loaded.inspect_err(|_| self.entries.lock().retain(is_needed))?;
        let value = Arc::new(value);
        *kept = Some(Arc::clone(&value));
        drop(kept);
        // Under this lock, so that no bytes change while they are summed up.
        let mut entries = self.entries.lock();
        entry.bytes.store(bytes, Relaxed);
        let bytes = |entry: &Entry<V>| entry.bytes.load(Relaxed);
        let mut total: u64 = entries.iter().map(|(_, entry)| bytes(entry)).sum();
        while total > self.room {
            // Those that were not used for the longest time are dropped, but not those that are being loaded: another thread would load them too.
            let oldest = entries
                .iter()
                .rposition(|(it, entry)| *it != key && bytes(entry) > 0);
            let dropped = oldest.and_then(|oldest| entries.remove(oldest));
            match dropped {
                Some((_, entry)) => total -= bytes(&entry),
                None => break,
            }
        }
        Ok(value)
    }

    /// Whether a value is there, or is being loaded.
    #[cfg(feature = "object-store")]
    pub(crate) fn holds(&self, key: K) -> bool {
        self.entries.lock().iter().any(|(known, _)| *known == key)
    }

    #[cfg(feature = "object-store")]
    pub(crate) fn forget(&self, is_gone: impl Fn(K) -> bool) {
        self.entries.lock().retain(|(key, _)| !is_gone(*key));
    }

    /// The entry of a key, which is the first then.
    fn entry(&self, key: K) -> Arc<Entry<V>> {
        let mut entries = self.entries.lock();
        let at = entries.iter().position(|(known, _)| *known == key);
        let found = at.and_then(|at| entries.remove(at));
        let empty = || Entry {
            value: Mutex::new(None),
            bytes: AtomicU64::new(0),
        };
        let entry = found.map_or_else(|| Arc::new(empty()), |(_, entry)| entry);
        entries.push_front((key, Arc::clone(&entry)));
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::thread;

    use super::Cache;

    /// Threads that need the same values at once load each of them once, although there is room for one only while they are loaded.
    #[test]
    fn what_is_being_loaded_is_not_loaded_again() {
        const THREADS: usize = 4;
        let cache = Cache::new(1);
        let loads: [AtomicUsize; THREADS] = Default::default();
        let all_load = std::sync::Barrier::new(THREADS);
        thread::scope(|scope| {
            for key in 0..THREADS {
                let (cache, loads, all_load) = (&cache, &loads, &all_load);
                let load = move || {
                    // Each has an entry before one is loaded.
                    all_load.wait();
                    thread::sleep(std::time::Duration::from_millis(20 * key as u64));
                    loads[key].fetch_add(1, Relaxed);
                    Ok::<_, ()>((key, 1))
                };
                scope.spawn(move || cache.get(key, load));
                // Another one that needs it meanwhile.
                scope.spawn(move || {
                    thread::sleep(std::time::Duration::from_millis(5));
                    let again = || {
                        loads[key].fetch_add(1, Relaxed);
                        Ok::<_, ()>((key, 1))
                    };
                    assert_eq!(*cache.get(key, again).unwrap(), key);
                });
            }
        });
        assert!(
            loads.iter().all(|loads| loads.load(Relaxed) == 1),
            "{loads:?}"
        );
        assert_eq!(cache.entries.lock().len(), 1);
        // A thread that waited for a load that failed loads the value, and it is kept.
        let begun = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let failed = cache.get(7, || {
                    begun.wait();
                    thread::sleep(std::time::Duration::from_millis(50));
                    Err(())
                });
                assert!(failed.is_err());
            });
            begun.wait();
            assert_eq!(cache.get(7, || Ok::<_, ()>((70, 1))).map(|it| *it), Ok(70));
        });
        assert_eq!(cache.get(7, || Err(())).map(|it| *it), Ok(70));
        // A value that cannot be loaded leaves nothing behind.
        assert!(cache.get(9, || Err(())).is_err());
        assert_eq!(cache.entries.lock().len(), 1);
    }
}
