//! A recorded event, and its form in a ring.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::layers::path::{self, PathId};
use crate::memory::HostEvent;

/// The bits of a word that hold the kind; thread and path lie below.
const KIND: u32 = 48;
const THREAD: u32 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) what: HostEvent,
    /// Since the recording began.
    pub(super) nanoseconds: u64,
    pub(super) path: PathId,
    /// Threads are counted from 1, in the order of their first event.
    pub(super) thread: u16,
}

impl Event {
    /// An event on this thread. It does not allocate.
    pub(super) fn here(what: HostEvent, nanoseconds: u64) -> Self {
        Self {
            what,
            nanoseconds,
            path: path::current(),
            thread: thread(),
        }
    }

    pub(super) fn packed(self) -> [u64; 4] {
        let (kind, first, second) = match self.what {
            HostEvent::Allocated { address, bytes } => (0, address, bytes),
            HostEvent::Freed { address, bytes } => (1, address, bytes),
            HostEvent::Exhausted { requested, free } => (2, free, requested),
        };
        let place = self.path.index() as u64;
        let thread = u64::from(self.thread) << THREAD;
        let last = kind << KIND | thread | place;
        [first as u64, second as u64, self.nanoseconds, last]
    }

    pub(super) fn unpacked([first, second, nanoseconds, last]: [u64; 4]) -> Self {
        let (first, second) = (first as usize, second as usize);
        let what = match last >> KIND {
            0 => HostEvent::Allocated {
                address: first,
                bytes: second,
            },
            1 => HostEvent::Freed {
                address: first,
                bytes: second,
            },
            _ => HostEvent::Exhausted {
                requested: second,
                free: first,
            },
        };
        Self {
            what,
            nanoseconds,
            path: PathId::of_index(last as u32),
            thread: (last >> THREAD) as u16,
        }
    }
}

/// This thread's number. Those after the 65,534th share the last one.
fn thread() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    thread_local! {
        // Without a destructor, so that reading it neither allocates nor fails.
        static NUMBER: Cell<u16> = const { Cell::new(0) };
    }
    let known = NUMBER.try_with(Cell::get).unwrap_or(u16::MAX);
    if known > 0 {
        return known;
    }
    let next = |count: u16| count.checked_add(1);
    let count = COUNT.fetch_update(Relaxed, Relaxed, next);
    let number = count.map_or(u16::MAX, |count| count.saturating_add(1));
    let _ = NUMBER.try_with(|own| own.set(number));
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_comes_back_from_its_words() {
        let (address, bytes) = (0x7fff_ffff_f000, isize::MAX as usize);
        let kinds = [
            HostEvent::Allocated { address, bytes },
            HostEvent::Freed { address, bytes },
            HostEvent::Exhausted {
                requested: bytes,
                free: 7,
            },
        ];
        for what in kinds {
            let event = Event {
                what,
                nanoseconds: u64::MAX,
                path: PathId::of_index(u32::MAX),
                thread: u16::MAX,
            };
            assert_eq!(Event::unpacked(event.packed()), event);
        }
    }

    #[test]
    fn a_thread_keeps_its_number() {
        let own = thread();
        let other = std::thread::spawn(|| (thread(), thread()));
        let (other, again) = other.join().unwrap();
        assert_eq!((own, other), (thread(), again));
        assert_ne!(own, other);
    }
}
