//! The one recording of the process: a ring that the allocator writes to while it is there.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::event::Event;
use super::ring::{EACH, Ring};
use crate::error::{MemoryError, Result};
use crate::memory::{DeviceMemory, HostEvent, unwatch, watch};

/// How long the end waits for threads that are writing an event, which takes them nanoseconds.
const PATIENCE: Duration = Duration::from_secs(1);

static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static CURRENT: AtomicPtr<Running> = AtomicPtr::new(ptr::null_mut());
/// Threads that may use what `CURRENT` points to. Sequentially consistent with it: either the end of the recording sees a thread
/// here, or that thread sees that the recording has ended.
static WRITERS: AtomicUsize = AtomicUsize::new(0);

struct Running {
    ring: Ring,
    began: Instant,
}

/// Called inside the allocator.
fn note(what: HostEvent) {
    WRITERS.fetch_add(1, SeqCst);
    let running = CURRENT.load(SeqCst);
    // SAFETY: a pointer other than null came from `Box::into_raw` and is freed by `Recording::end` alone, which first replaces it
    // by null and then waits for `WRITERS` to be 0; this thread is among them until the subtraction below.
    if let Some(running) = unsafe { running.as_ref() } {
        let nanoseconds = running.began.elapsed().as_nanos() as u64;
        running.ring.push(Event::here(what, nanoseconds).packed());
    }
    WRITERS.fetch_sub(1, SeqCst);
}

/// What was recorded.
pub(super) struct Recorded {
    /// The kept events, oldest first.
    pub(super) events: Vec<Event>,
    /// The number of events that were not kept.
    pub(super) dropped: u64,
    /// Live bytes at the end, without the record itself.
    pub(super) in_use: u64,
    pub(super) began: SystemTime,
    /// How long it took.
    pub(super) nanoseconds: u64,
}

/// Records until it is dropped.
#[derive(Debug)]
pub(super) struct Recording {
    memory: DeviceMemory,
    began: SystemTime,
    /// What `CURRENT` points to is this recording's.
    is_running: bool,
}

impl Recording {
    pub(super) fn begin(capacity: usize, least: usize) -> Result<Self> {
        let memory = DeviceMemory::host().open()?;
        if memory.in_use().is_none() {
            return Err(MemoryError::AllocatorNotInstalled.into());
        }
        if IS_TAKEN.swap(true, Acquire) {
            return Err(MemoryError::AlreadyRecording.into());
        }
        let Some(ring) = Ring::new(capacity) else {
            IS_TAKEN.store(false, Release);
            let (events, each) = (capacity, EACH);
            return Err(MemoryError::Capacity { events, each }.into());
        };
        let (began, now) = (SystemTime::now(), Instant::now());
        let running = Box::new(Running { ring, began: now });
        CURRENT.store(Box::into_raw(running), SeqCst);
        watch(least, note);
        Ok(Self {
            memory,
            began,
            is_running: true,
        })
    }

    /// Ends the recording and returns it.
    pub(super) fn finish(mut self) -> Recorded {
        let (memory, began) = (self.memory.clone(), self.began);
        let recorded = self.end(|running| {
            let nanoseconds = running.began.elapsed().as_nanos() as u64;
            let own = running.ring.bytes() + size_of::<Running>();
            let in_use = memory.in_use().unwrap_or(0);
            let events: Vec<_> = running.ring.kept().map(Event::unpacked).collect();
            Recorded {
                dropped: running.ring.count().saturating_sub(events.len() as u64),
                events,
                in_use: in_use.saturating_sub(own as u64),
                began,
                nanoseconds,
            }
        });
        recorded.unwrap_or(Recorded {
            events: Vec::new(),
            dropped: 0,
            in_use: 0,
            began,
            nanoseconds: 0,
        })
    }

    /// Stops the recording, reads it, and frees it. `None` if it was ended before.
    fn end<T>(&mut self, read: impl FnOnce(&Running) -> T) -> Option<T> {
        if !std::mem::take(&mut self.is_running) {
            return None;
        }
        unwatch();
        let running = NonNull::new(CURRENT.swap(ptr::null_mut(), SeqCst))?;
        let is_quiet = no_writer_is_left();
        // SAFETY: it came from `Box::into_raw`, and the swap gave it to this call alone, which frees it below.
        let value = read(unsafe { running.as_ref() });
        if is_quiet {
            // SAFETY: as above; nobody else refers to it, because `WRITERS` was 0 after the swap.
            drop(unsafe { Box::from_raw(running.as_ptr()) });
        }
        // Not before: from here on `CURRENT` may be another recording's.
        IS_TAKEN.store(false, Release);
        Some(value)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.end(|_| ());
    }
}

/// Waits for the threads that write an event. `false` if one does not come to an end, as in a process that was forked in the
/// middle of one.
fn no_writer_is_left() -> bool {
    let began = Instant::now();
    while WRITERS.load(SeqCst) > 0 {
        if began.elapsed() > PATIENCE {
            return false;
        }
        thread::yield_now();
    }
    true
}
