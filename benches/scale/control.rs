//! The control plane: ranks tell their health and weights, and learn those of all.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::constants::{ALIKE, ANSWER, ANSWERS, FAN_OUT, OWN, WAY};

/// In what tree the ranks' bytes go to rank 0, and the answer back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// The most branches of a rank.
    pub fan_out: usize,
    /// The answer has a summary of what each rank says besides, and not that of each.
    pub is_summary: bool,
}

/// As the crate does it.
pub const TREE: Gather = Gather {
    fan_out: FAN_OUT,
    is_summary: false,
};
/// All connected to rank 0, as the crate did before.
pub const STAR: Gather = Gather {
    fan_out: usize::MAX,
    is_summary: false,
};

/// When a message arrives and how long it is read, ordered so that a heap gives the earliest first.
struct Arrival(f64, f64);

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

/// Seconds of a rank for a message of so many bytes, which it reads or writes.
pub fn handled(bytes: f64) -> f64 {
    ANSWER / 2. + bytes / ANSWERS
}

impl Gather {
    /// Bytes of a message with what this many ranks say.
    pub fn bytes(self, ranks: usize) -> f64 {
        let own = if self.is_summary { 1 } else { ranks };
        ALIKE + own as f64 * OWN
    }

    /// The branches of a rank that is followed by `others`, as src/distributed/control/tree.rs cuts them.
    pub fn branches(self, others: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let count = others.len().min(self.fan_out);
        let at = move |branch: usize| others.start + others.len() * branch / count;
        (0..count).map(move |branch| at(branch)..at(branch + 1))
    }

    /// Bytes that rank 0 reads and writes.
    pub fn bytes_through_first(self, ranks: usize) -> f64 {
        let branches = self.branches(1..ranks);
        let both = branches.map(|branch| self.bytes(branch.len()) + self.bytes(ranks));
        both.sum()
    }

    /// When the last rank knows the answer, if the ranks are ready at these times.
    pub fn done(self, ready: &[f64]) -> f64 {
        let answered = self.called(ready, 0..ready.len());
        self.told(ready.len(), 0..ready.len(), answered)
    }

    /// When the first of these ranks, whose branches are the others, has the calls of all.
    fn called(self, ready: &[f64], ranks: Range<usize>) -> f64 {
        let calls = self.branches(ranks.start + 1..ranks.end);
        let calls = calls.map(|branch| {
            let read = handled(self.bytes(branch.len()));
            Arrival(self.called(ready, branch) + WAY, read)
        });
        let mut calls: BinaryHeap<_> = calls.collect();
        let mut free = 0f64;
        while let Some(Arrival(time, read)) = calls.pop() {
            free = free.max(time) + read;
        }
        free.max(ready[ranks.start])
    }

    /// When the last of these ranks has the answer that the first one has since `time`.
    fn told(self, all: usize, ranks: Range<usize>, time: f64) -> f64 {
        let write = handled(self.bytes(all));
        let branches = self.branches(ranks.start + 1..ranks.end).zip(1u32..);
        let told = branches
            .map(|(branch, number)| self.told(all, branch, time + f64::from(number) * write + WAY));
        told.fold(time, f64::max)
    }
}
