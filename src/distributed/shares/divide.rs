use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The parts of a batch, one for each rank, with which the slowest is done soonest. If there are enough samples, each rank has one.
///
/// `paces` are positive: what one sample takes on each rank.
pub(super) fn parts(batch: usize, paces: &[f64]) -> Vec<usize> {
    let fastest = paces.iter().copied().fold(f64::INFINITY, f64::min);
    let speeds: Vec<_> = paces.iter().map(|pace| fastest / pace).collect();
    let least = usize::from(batch >= paces.len());
    let mut parts = shares(batch, &speeds, least);
    let given = parts
        .iter()
        .fold(0, |sum: usize, part| sum.saturating_add(*part));
    // What rounding left goes, one by one, to the rank that is done with one more first. Positive numbers compare as their bits do.
    let done = |rank: usize, part: usize, pace: &f64| {
        let time = (part as f64 + 1.) * pace;
        Reverse((time.to_bits(), rank))
    };
    let ranks = parts.iter().zip(paces).enumerate();
    let mut first: BinaryHeap<_> = ranks
        .map(|(rank, (part, pace))| done(rank, *part, pace))
        .collect();
    for _ in given..batch {
        if let Some(mut top) = first.peek_mut()
            && let Some((part, pace)) = parts.get_mut(top.0.1).zip(paces.get(top.0.1))
        {
            *part += 1;
            *top = done(top.0.1, *part, pace);
        }
    }
    // Numbers beyond 2^53 may have been rounded up.
    for _ in batch..given {
        if let Some(largest) = parts.iter_mut().max_by_key(|part| **part) {
            *largest -= 1;
        }
    }
    parts
}

/// The whole samples that each rank has by its speed, and at least `least`.
fn shares(batch: usize, speeds: &[f64], least: usize) -> Vec<usize> {
    let mut is_least = vec![false; speeds.len()];
    loop {
        let others = || {
            is_least
                .iter()
                .zip(speeds)
                .filter(|(is_least, _)| !**is_least)
        };
        let room = batch - least * (speeds.len() - others().count());
        let total: f64 = others().map(|(_, speed)| speed).sum();
        let share = |speed: f64| room as f64 * (speed / total);
        let shares: Vec<_> = speeds.iter().map(|speed| share(*speed)).collect();
        let mut has_changed = false;
        for (is_least, share) in is_least.iter_mut().zip(&shares) {
            if !*is_least && *share < least as f64 {
                (*is_least, has_changed) = (true, true);
            }
        }
        if !has_changed {
            let whole = is_least
                .iter()
                .zip(&shares)
                .map(|(is_least, share)| match is_least {
                    true => least,
                    false => *share as usize,
                });
            return whole.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_other_parts_are_faster(
            batch in 0_usize..40,
            paces in prop::collection::vec(0.1_f64..10., 2..4),
        ) {
            let found = parts(batch, &paces);
            prop_assert_eq!(found.iter().sum::<usize>(), batch);
            let least = usize::from(batch >= paces.len());
            prop_assert!(found.iter().all(|part| *part >= least));
            let time = |parts: &[usize]| {
                parts.iter().zip(&paces).map(|(part, pace)| *part as f64 * pace).fold(0., f64::max)
            };
            // Every other division among two or three ranks.
            for first in least..=batch {
                for second in least..=batch - first {
                    let third = batch - first - second;
                    let all = match paces.len() {
                        2 => vec![first, batch - first],
                        _ => vec![first, second, third],
                    };
                    if all.iter().all(|part| *part >= least) {
                        prop_assert!(time(&found) <= time(&all) * (1. + 1e-12), "{found:?} {all:?} {paces:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn extremes_leave_each_rank_a_sample() {
        assert_eq!(parts(10, &[1e-300, 1e300, 1.]), [8, 1, 1]);
        assert_eq!(parts(2, &[1., 2., 0.5]), [1, 0, 1]);
        assert_eq!(parts(0, &[1., 2.]), [0, 0]);
        let huge = usize::MAX >> 8;
        assert_eq!(parts(huge, &[1., 1., 1.]).iter().sum::<usize>(), huge);
        assert_eq!(parts(64, &[1.; 8]), [8; 8]);
        assert_eq!(parts(5, &[]), [0; 0]);
    }
}
