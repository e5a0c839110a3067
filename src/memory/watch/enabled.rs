//! A function that is called for large blocks, while it is set. An allocator pays one relaxed load and a comparison for it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What happened in the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostEvent {
    /// Told after the block is allocated.
    Allocated { address: usize, bytes: usize },
    /// Told before the block is freed, since its address may be used again at once.
    Freed { address: usize, bytes: usize },
    /// A request was refused or went over the limit, which left `free` bytes.
    Exhausted { requested: usize, free: usize },
}

/// It runs inside the allocator: it must not allocate, wait or panic.
type Watcher = fn(HostEvent);

/// The smallest block that the watcher hears of, in bytes; no layout is as large as this while nobody watches. On a cache line of its
/// own, because every request reads it.
#[repr(align(128))]
struct Least(AtomicUsize);

static LEAST: Least = Least(AtomicUsize::new(usize::MAX));
static WATCHER: OnceLock<Watcher> = OnceLock::new();

#[inline]
pub(in crate::memory) fn allocated(pointer: *mut u8, bytes: usize) {
    if bytes >= LEAST.0.load(Relaxed) {
        tell_allocated(pointer, bytes);
    }
}

#[inline]
pub(in crate::memory) fn freed(pointer: *mut u8, bytes: usize) {
    if bytes >= LEAST.0.load(Relaxed) {
        tell_freed(pointer, bytes);
    }
}

#[cold]
pub(in crate::memory) fn exhausted(requested: usize, free: usize) {
    if LEAST.0.load(Relaxed) != usize::MAX {
        tell(HostEvent::Exhausted { requested, free });
    }
}

// These two are functions of their own, so that an allocation that is not told needs no room for an event.

#[cold]
#[inline(never)]
fn tell_allocated(pointer: *mut u8, bytes: usize) {
    let address = pointer.addr();
    tell(HostEvent::Allocated { address, bytes });
}

#[cold]
#[inline(never)]
fn tell_freed(pointer: *mut u8, bytes: usize) {
    let address = pointer.addr();
    tell(HostEvent::Freed { address, bytes });
}

fn tell(event: HostEvent) {
    if let Some(watcher) = WATCHER.get() {
        watcher(event);
    }
}

/// Tells `watcher` of blocks of at least so many bytes. A process has one watcher: the first stays.
pub(crate) fn watch(least: usize, watcher: Watcher) {
    WATCHER.get_or_init(|| watcher);
    LEAST.0.store(least, Relaxed);
}

/// The watcher hears of nothing more, except of requests that have begun.
pub(crate) fn unwatch() {
    LEAST.0.store(usize::MAX, Relaxed);
}
