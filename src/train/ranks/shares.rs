//! How batches are divided among ranks of different speeds: by the median of what each took for a unit of cost, once and for all after the
//! first updates.

use crate::batch::{Division, Origin};
use crate::train::positions::Positions;
use crate::train::report::Spent;

/// The weight of the fastest rank, so that weights are exact to a thousandth of it.
const FASTEST: f64 = 1000.;

/// Speeds that differ by less than this part count as equal.
const LEAST_GAIN: f64 = 0.05;

/// Measures the ranks in the first updates, and then divides batches in proportion to their speeds, once and for all.
///
/// All ranks receive the same numbers and compute with operations that IEEE 754 rounds exactly, so all divide alike without asking each other.
#[derive(Debug)]
pub(super) struct Shares {
    /// Updates to measure.
    updates: usize,
    /// Of each rank, the seconds that a unit of cost took in each measured update.
    paces: Vec<Vec<f64>>,
    division: Option<Division>,
}

impl Shares {
    pub(super) fn new(ranks: usize, updates: usize) -> Self {
        Self {
            updates,
            paces: vec![Vec::new(); ranks],
            division: None,
        }
    }

    /// Whether more updates are to be measured.
    pub(super) fn is_measuring(&self) -> bool {
        self.paces.iter().any(|all| all.len() < self.updates)
    }

    /// Records the ranks' paces in an update, in their order. It does not count if a rank has none, as without samples.
    pub(super) fn observe(&mut self, paces: impl Iterator<Item = Option<f64>>) {
        let paces = paces.collect::<Option<Vec<_>>>();
        for (all, pace) in self.paces.iter_mut().zip(paces.into_iter().flatten()) {
            if all.len() < self.updates {
                all.push(pace);
            }
        }
    }

    /// Returns the division by what was measured, once that is enough.
    fn measured(&self) -> Option<Division> {
        let medians = self.paces.iter().map(|all| {
            let mut all = all.clone();
            all.sort_by(f64::total_cmp);
            let is_enough = all.len() >= self.updates;
            all.get(all.len() / 2).copied().filter(|_| is_enough)
        });
        medians.collect::<Option<Vec<_>>>().as_deref().map(by_speed)
    }

    /// Returns the division of this batch's loader from now on, if it is known. A division that the loader has already, such as that of a
    /// resumed run, is taken over.
    fn division(&mut self, origin: &Origin<'_>) -> Option<&Division> {
        if self.division.is_none() {
            let known = origin.position.division.clone();
            self.division = known.or_else(|| self.measured());
        }
        self.division.as_ref()
    }

    /// Divides the next batches of these loaders as the ranks' speeds suggest, once they are known. `positions` are made to say so.
    pub(super) fn divide(&mut self, origins: &[Origin<'_>], positions: &mut Positions) {
        // Not data of the rank's own.
        for origin in origins.iter().filter(|origin| origin.rank.is_some()) {
            let Some(division) = self.division(origin) else {
                continue;
            };
            if origin.division.get().as_ref() != Some(division) {
                let loader = origin.loader;
                tracing::info!(loader, parts = ?division, "batches are divided by the ranks' speeds");
                origin.division.set(Some(division));
            }
            // Also of a batch that was taken before.
            positions.divide(origin.loader, division);
        }
    }
}

impl Spent {
    /// The seconds that one unit of cost took; `None` if that was not measured, or memory ran out.
    pub(super) fn pace(self) -> Option<f64> {
        let pace = self.seconds / self.cost as f64;
        (!self.is_exhausted && pace.is_normal() && pace > 0.).then_some(pace)
    }
}

/// Divides in proportion to the speeds of ranks for which a unit of cost takes so long.
fn by_speed(paces: &[f64]) -> Division {
    let fastest = paces.iter().copied().fold(f64::INFINITY, f64::min);
    let equal = Division::equal(paces.len());
    if paces
        .iter()
        .all(|pace| *pace <= fastest * (1. + LEAST_GAIN))
    {
        return equal;
    }
    let weight = |pace: &f64| ((FASTEST * (fastest / pace)).round() as usize).max(1);
    let weights = paces.iter().map(weight).collect::<Vec<_>>();
    Division::weighted(weights).unwrap_or(equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: usize = 50;

    fn spent(seconds: f64) -> Spent {
        Spent {
            cost: COST,
            seconds,
            is_exhausted: false,
        }
    }

    /// The parts of a batch of 90 samples after updates in which the ranks took so long.
    fn after(updates: usize, seconds: &[[f64; 3]]) -> Option<Vec<usize>> {
        let mut shares = Shares::new(3, updates);
        for seconds in seconds {
            shares.observe(seconds.iter().map(|seconds| spent(*seconds).pace()));
        }
        let parts = shares.measured()?.parts(90);
        Some(parts.iter().map(ExactSizeIterator::len).collect())
    }

    #[test]
    fn parts_follow_the_median_and_then_stay() {
        let usual = [1., 2., 2.];
        assert_eq!(after(3, &[usual; 2]), None);
        assert_eq!(after(3, &[usual; 3]), Some(vec![45, 23, 22]));
        // One odd update, such as the first, makes no difference; nor does any after the last that is measured.
        let odd = [[70., 2., 9.], usual, usual, [9., 1., 1.], [9., 1., 1.]];
        assert_eq!(after(3, &odd), Some(vec![45, 23, 22]));
        assert_eq!(after(1, &[[1., 1.04, 1.02]]), Some(vec![30; 3]));
    }

    #[test]
    fn extremes_leave_each_rank_a_sample() {
        assert_eq!(after(1, &[[1e-300, 1., 1e300]]), Some(vec![88, 1, 1]));
    }

    #[test]
    fn updates_that_say_nothing_do_not_count() {
        for seconds in [f64::NAN, 0., -1., f64::INFINITY, f64::MIN_POSITIVE / 2.] {
            assert_eq!(after(1, &[[1., seconds, 1.]; 9]), None, "{seconds}");
        }
        let mut shares = Shares::new(2, 1);
        let (fast, slow) = (spent(1.), spent(2.));
        let exhausted = Spent {
            is_exhausted: true,
            ..slow
        };
        let idle = Spent { cost: 0, ..slow };
        for odd in [exhausted, idle] {
            shares.observe([fast, odd].into_iter().map(Spent::pace));
            assert_eq!(shares.measured(), None);
        }
        assert!(shares.is_measuring());
        shares.observe([fast, slow].into_iter().map(Spent::pace));
        assert!(!shares.is_measuring());
        assert_eq!(shares.measured().unwrap().parts(30), [0..20, 20..30]);
    }
}
