//! Micro-batches of several trainers on one memory run one after another, so that each sees the room that it plans for.

use std::time::Duration;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// How long a trainer waits for its turn. A closure that waits for another trainer of the same memory would otherwise wait forever.
const PATIENCE: Duration = Duration::from_secs(60);

/// The order in which the trainers on one memory work.
#[derive(Debug)]
pub(super) struct Turns {
    taken: ReentrantMutex<()>,
    patience: Duration,
}

/// A trainer's turn, until dropped; from [`DeviceMemory::turn`](super::DeviceMemory::turn). `None` if no wait was needed, or the wait took too
/// long.
#[derive(Debug)]
#[must_use = "the turn ends when it is dropped"]
pub(crate) struct Turn<'a>(Option<ReentrantMutexGuard<'a, ()>>);

impl Turns {
    pub(super) const fn new() -> Self {
        Self {
            taken: ReentrantMutex::new(()),
            patience: PATIENCE,
        }
    }

    /// Waits until no other thread has its turn, at most 60 seconds; at once where this thread has it already.
    pub(super) fn take(&self) -> Turn<'_> {
        let guard = self.taken.try_lock_for(self.patience);
        if guard.is_none() {
            tracing::warn!(
                seconds = self.patience.as_secs_f64(),
                "another trainer on this memory has not finished its micro-batch: going on beside it, memory may run out"
            );
        }
        Turn(guard)
    }
}

impl Turn<'_> {
    /// A turn without waiting.
    pub(super) fn free() -> Self {
        Self(None)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            // Otherwise the thread that ends its turn would usually win the next one as well.
            ReentrantMutexGuard::unlock_fair(guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let (turns, inside, most) = (Turns::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..50 {
                        let _turn = turns.take();
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }

    #[test]
    fn a_thread_may_take_its_turn_again() {
        let turns = Turns::new();
        let outer = turns.take();
        let inner = turns.take();
        assert!(outer.0.is_some() && inner.0.is_some());
        drop(outer);
        thread::scope(|threads| {
            let other = threads.spawn(|| turns.taken.try_lock().is_some());
            assert!(!other.join().unwrap(), "the inner turn lasts");
        });
    }

    #[test]
    fn whoever_waits_is_next() {
        let turns = Turns::new();
        let (sender, order) = mpsc::channel();
        let first = turns.take();
        thread::scope(|threads| {
            let (turns, waiting) = (&turns, sender.clone());
            threads.spawn(move || {
                let _turn = turns.take();
                waiting.send("the other thread").unwrap();
            });
            thread::sleep(Duration::from_millis(300)); // until it waits
            drop(first);
            let _turn = turns.take();
            sender.send("this one").unwrap();
        });
        assert_eq!(order.iter().next(), Some("the other thread"));
    }

    #[test]
    fn after_the_time_out_it_goes_on() {
        let turns = Turns {
            patience: Duration::from_millis(20),
            ..Turns::new()
        };
        let held = turns.take();
        thread::scope(|threads| {
            let other = threads.spawn(|| turns.take().0.is_none());
            assert!(other.join().unwrap());
        });
        drop(held);
        assert!(turns.take().0.is_some());
    }
}
