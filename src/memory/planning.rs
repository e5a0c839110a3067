//! What trainers use of a memory: turns, the room to plan with, and the state at an exhaustion.

use std::time::Duration;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::device::{DeviceMemory, PeakScope};
use crate::error::{Cause, MemoryReading, Neighbour};

/// A neighbour is blamed if memory outside the pool has grown by more than the device's capacity divided by this.
const NEIGHBOUR_FRACTION: u64 = 64;

/// How long a trainer waits for its turn. A closure that waits for another trainer on the same memory would otherwise wait forever.
const PATIENCE: Duration = Duration::from_secs(60);

impl DeviceMemory {
    /// Waits until no other thread works on a micro-batch on this memory, so that each sees the room that it plans for, and keeps others
    /// waiting until the guard is dropped. `None` if that took longer than [`PATIENCE`], or on the host without a limit. A thread may
    /// take several turns at once.
    pub(crate) fn turn(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        match self.device().is_cpu() && self.limit().is_none() {
            true => None,
            false => wait(&self.shared.turn, PATIENCE),
        }
    }

    /// Does the work on the pool that is due before a micro-batch: memory that older pools have given back since the limit changed
    /// becomes room of the current pool. On a GPU it may create, trim and switch pools.
    pub(crate) fn maintain(&self) {
        self.shared.backing.maintain();
    }

    /// The [`reading`](Self::reading), and on a GPU the driver's free memory: a limit on the host counts this process alone.
    pub(crate) fn surroundings(&self) -> MemoryReading {
        let now = self.reading();
        let free = now.reserved.and_then(|_| self.shared.backing.stats().free);
        MemoryReading { free, ..now }
    }

    /// Bytes that limit and device leave; on the host the limit alone. `None` if nothing bounds them.
    pub(crate) fn room(&self) -> Option<u64> {
        let now = self.surroundings();
        let held = now.free.zip(now.reserved);
        let device = held.map(|(free, reserved)| free.saturating_add(reserved));
        let bound = now.limit.into_iter().chain(device).min()?;
        Some(bound.saturating_sub(now.in_use?))
    }

    /// The memory's state when work that began with `scope` fails, and the cause that follows from it if the device has refused an
    /// allocation. `need` is the known use of work of the failed size, in bytes.
    pub(crate) fn refused(&self, scope: &PeakScope, need: Option<u64>) -> (MemoryReading, Cause) {
        let stats = self.stats();
        let bytes = MemoryReading {
            requested: None,
            in_use: stats.in_use,
            reserved: stats.reserved,
            peak: scope.peak(),
            limit: stats.limit,
            free: stats.free,
            total: stats.total,
        };
        let others = stats.unaccounted.unwrap_or(0);
        let others_grew = others.saturating_sub(self.shared.others_at_open);
        (bytes, cause(&bytes, need, others_grew))
    }

    /// Other processes on the device, the largest first. It asks the driver and may take seconds.
    pub(crate) fn neighbours(&self) -> Vec<Neighbour> {
        self.shared.backing.neighbours()
    }
}

/// Why an allocation from a pool failed; its size is not known. `others_grew` is the growth of the memory outside the pool since opening.
fn cause(bytes: &MemoryReading, need: Option<u64>, others_grew: u64) -> Cause {
    let (Some(reserved), Some(free), Some(total)) = (bytes.reserved, bytes.free, bytes.total)
    else {
        return Cause::Unknown;
    };
    let used = bytes.peak.or(bytes.in_use).unwrap_or(reserved);
    let unused = reserved.saturating_sub(used);
    let limit_leaves = bytes.limit.map(|limit| limit.saturating_sub(reserved));
    let growth = limit_leaves.unwrap_or(u64::MAX).min(free);
    match need {
        // More was left than the whole work takes.
        Some(need) if growth >= need => Cause::Unknown,
        Some(need) if growth.saturating_add(unused) >= need => Cause::Fragmented,
        _ if limit_leaves.is_some_and(|leaves| leaves <= free) => Cause::Limit,
        _ if others_grew > total / NEIGHBOUR_FRACTION => Cause::Neighbour,
        _ => Cause::DeviceFull,
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
