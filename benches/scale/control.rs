//! The control plane: ranks tell their health and weights, and learn those of all.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::constants::{ALIKE, ANSWER, ANSWERS, OWN, WAY};

/// How the ranks' bytes are gathered and answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gather {
    /// Rank 0 reads from every rank and answers each with what all say alike and what each says besides, as the crate does.
    Star,
    /// The same, but the answer is a summary.
    StarSummary,
    /// A tree whose nodes have up to this many children, with summaries up and down.
    TreeSummary(usize),
}

/// A message that arrives, ordered so that a heap gives the earliest first.
struct Arrival(f64);

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

/// When a receiver that takes `each` seconds for a message has read all that are sent to it.
fn read(sent: impl Iterator<Item = f64>, each: f64) -> f64 {
    let mut arrivals: BinaryHeap<_> = sent.map(|time| Arrival(time + WAY)).collect();
    let mut free = 0f64;
    while let Some(Arrival(time)) = arrivals.pop() {
        free = free.max(time) + each;
    }
    free
}

impl Gather {
    /// When the last rank knows the answer, if the ranks are ready at these times.
    pub fn done(self, ready: &[f64]) -> f64 {
        let ranks = ready.len();
        if ranks < 2 {
            return ready.iter().copied().fold(0., f64::max);
        }
        // Half of a message's time is its reading, half the answer's writing.
        let star = |answer: f64| {
            let asked = read(ready[1..].iter().copied(), ANSWER / 2.).max(ready[0]);
            asked + (ranks - 1) as f64 * (ANSWER / 2. + answer / ANSWERS) + WAY
        };
        match self {
            Self::Star => star(ALIKE + ranks as f64 * OWN),
            Self::StarSummary => star(ALIKE),
            Self::TreeSummary(children) => {
                let mut level = ready.to_vec();
                let mut down = 0.;
                while level.len() > 1 {
                    // The first of each group is the parent of the others.
                    let groups = level.chunks(children + 1);
                    let parents = groups.map(|group| {
                        let asked = read(group[1..].iter().copied(), ANSWER / 2.);
                        asked.max(group[0])
                    });
                    level = parents.collect();
                    down += children as f64 * ANSWER / 2. + WAY;
                }
                level[0] + down
            }
        }
    }
}
