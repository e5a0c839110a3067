//! Which ranks are connected: a tree, whose root is rank 0.
//!
//! The ranks of a branch follow one another. So what a branch has said is in the order of ranks, and most connections are between ranks of one
//! machine.

use std::ops::Range;

/// The most branches of a rank. With one rank more than these, or fewer, all are connected to rank 0. More make each rank write an answer more often
/// one time after another, and fewer make it pass more ranks.
pub(crate) const FAN_OUT: usize = 16;

/// The ranks to which a rank is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// `None` at rank 0.
    pub(super) parent: Option<usize>,
    /// The ranks of each branch. The first one of each is this rank's child.
    pub(super) branches: Vec<Range<usize>>,
}

impl Place {
    /// Of a rank among `size`, each of which has at most so many branches.
    pub(super) fn of(rank: usize, size: usize, fan_out: usize) -> Self {
        let (mut parent, mut branch) = (None, 0..size);
        loop {
            let branches = cut(branch.start + 1..branch.end, fan_out);
            match branches.iter().find(|below| below.contains(&rank)) {
                Some(below) => (parent, branch) = (Some(branch.start), below.clone()),
                None => return Self { parent, branches },
            }
        }
    }

    pub(super) fn children(&self) -> impl Iterator<Item = usize> {
        self.branches.iter().map(|branch| branch.start)
    }
}

/// Cuts ranks into at most so many branches of about one length.
fn cut(ranks: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let count = ranks.len().min(most.max(1));
    let at = |branch: usize| ranks.start + ranks.len() * branch / count;
    (0..count)
        .map(|branch| at(branch)..at(branch + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Parents and children are each other's, a branch holds its ranks once, and no way to rank 0 is longer than it has to be.
        #[test]
        fn all_ranks_are_in_one_tree(size in 1usize..700, fan_out in 1usize..20) {
            let places: Vec<_> = (0..size).map(|rank| Place::of(rank, size, fan_out)).collect();
            prop_assert_eq!(places[0].parent, None);
            let mut levels = vec![0; size];
            for (rank, place) in places.iter().enumerate() {
                prop_assert!(place.branches.len() <= fan_out);
                let mut next = rank + 1;
                for branch in &place.branches {
                    prop_assert_eq!(branch.start, next);
                    prop_assert_eq!(places[next].parent, Some(rank));
                    levels[next] = levels[rank] + 1;
                    next = branch.end;
                }
                let end = match place.parent {
                    None => size,
                    Some(parent) => {
                        let above = &places[parent].branches;
                        above.iter().find(|branch| branch.start == rank).unwrap().end
                    }
                };
                prop_assert_eq!(next, end);
            }
            // Each level has room for `fan_out` times as many.
            let (mut depth, mut level, mut all) = (0, 1, 1);
            while all < size {
                (depth, level) = (depth + 1, level * fan_out);
                all += level;
            }
            prop_assert!(levels.iter().all(|level| *level <= depth));
        }
    }

    #[test]
    fn few_ranks_are_all_connected_to_rank_0() {
        for size in 1..=FAN_OUT + 1 {
            let first = Place::of(0, size, FAN_OUT);
            assert!(first.children().eq(1..size));
            for rank in 1..size {
                let place = Place::of(rank, size, FAN_OUT);
                assert_eq!((place.parent, place.branches), (Some(0), Vec::new()));
            }
        }
        let levels = |size: usize| {
            let ways = (0..size).map(|rank| {
                let above = |rank: &usize| Place::of(*rank, size, FAN_OUT).parent;
                std::iter::successors(Some(rank), above).count() - 1
            });
            ways.max()
        };
        assert_eq!([256, 1024, 16_384].map(levels), [2, 3, 4].map(Some));
    }
}
