//! Micro-batches of several trainers on one memory run one after another, so that each sees the room that it plans for.

use std::time::Duration;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::device::DeviceMemory;

/// How long a trainer waits for its turn. A closure that waits for another trainer on the same memory would otherwise wait forever.
const PATIENCE: Duration = Duration::from_secs(60);

impl DeviceMemory {
    /// Waits, at most 60 seconds, until no other thread works on a micro-batch on this memory, and keeps others waiting until the guard is dropped.
    /// `None` if no wait was needed or it took too long.
    ///
    /// A thread may take several turns at once. On the host, trainers wait for each other only under a limit.
    pub(crate) fn turn(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        match self.device().is_cpu() && self.limit().is_none() {
            true => None,
            false => wait(&self.shared.turn, PATIENCE),
        }
    }
}

fn wait(turn: &ReentrantMutex<()>, patience: Duration) -> Option<ReentrantMutexGuard<'_, ()>> {
    let guard = turn.try_lock_for(patience);
    if guard.is_none() {
        tracing::warn!(
            seconds = patience.as_secs_f64(),
            "another trainer on this memory has not finished its micro-batch: going on beside it, memory may run out"
        );
    }
    guard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_time_out_it_goes_on() {
        let turn = ReentrantMutex::new(());
        let patience = Duration::from_millis(20);
        let held = wait(&turn, patience);
        std::thread::scope(|threads| {
            let other = threads.spawn(|| wait(&turn, patience).is_none());
            assert!(other.join().unwrap());
        });
        drop(held);
        assert!(wait(&turn, patience).is_some());
    }
}
