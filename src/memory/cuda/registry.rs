//! Which devices' memory is open in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::driver::Handle;
use super::enabled::CudaMemory;
use crate::error::Result;

static OPEN: Mutex<BTreeMap<usize, Entry>> = Mutex::new(BTreeMap::new());

struct Entry {
    memory: Weak<CudaMemory>,
    /// What was current before, and what we made current last: a memory that is just being dropped may not have put the former
    /// back yet.
    before: Handle,
    ours: Handle,
}

/// The open memory of a device, or what `make` opens; `make` is told how to see through a pool of ours that is about to go.
pub(super) fn share_or(
    ordinal: usize,
    make: impl FnOnce(&dyn Fn(Handle) -> Handle) -> Result<Arc<CudaMemory>>,
) -> Result<(Arc<CudaMemory>, bool)> {
    let mut open = OPEN.lock();
    let entry = open.get(&ordinal);
    if let Some(memory) = entry.and_then(|entry| entry.memory.upgrade()) {
        return Ok((memory, true));
    }
    let last = entry.map(|entry| (entry.ours, entry.before));
    let memory = make(&|current| match last {
        Some((ours, before)) if current == ours => before,
        _ => current,
    })?;
    let entry = Entry {
        memory: Arc::downgrade(&memory),
        before: memory.before(),
        ours: memory.current(),
    };
    open.insert(ordinal, entry);
    Ok((memory, false))
}

/// Notes that a memory has made another of its pools current.
pub(super) fn moved(ordinal: usize, ours: Handle) {
    if let Some(entry) = OPEN.lock().get_mut(&ordinal) {
        entry.ours = ours;
    }
}

/// Runs while nobody can open a device's memory.
pub(super) fn alone<T>(f: impl FnOnce() -> T) -> T {
    let _open = OPEN.lock();
    f()
}
