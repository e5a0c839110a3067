//! How a batch is divided among ranks that are not equally fast.

mod builder;
mod divide;
mod effort;
mod pace;
#[cfg(test)]
mod tests;

pub use builder::SharesBuilder;
pub use effort::Effort;

use serde::{Deserialize, Serialize};

use crate::batch::Division;
use crate::error::{DataError, Result};

use pace::Pace;

/// Updates that a rank is measured in before batches are divided by it.
const MEASURED: u32 = 3;

/// Divides batches among ranks in proportion to what each was measured to do, so that none waits long for another.
///
/// Every rank has shares of its own and gives them the same measurements, of all ranks. The shares are a pure function of these, computed
/// with operations that are exact to the bit on every machine, so all ranks divide alike without exchanging anything else.
///
/// The division changes only if the slowest rank would be done sooner by more than [`least_gain`](SharesBuilder::least_gain), and by more
/// than the measured noise explains, and not more often than [`interval`](SharesBuilder::interval) says. It serializes with serde.
///
/// ```
/// use candle_headroom::distributed::{Effort, Shares};
///
/// let mut shares = Shares::builder(2).build()?;
/// for _ in 0..20 {
///     // Rank 1 takes twice as long for a sample.
///     let parts = shares.division().parts(96);
///     let effort = |rank: usize, pace: f64| {
///         let samples = parts[rank].len();
///         Effort::new(samples, samples, samples as f64 * pace)
///     };
///     shares.observe(&[effort(0, 0.01), effort(1, 0.02)])?;
/// }
/// assert_eq!(shares.division().parts(96), [0..64, 64..96]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    division: Division,
    /// Of each rank; none if the shares stay equal.
    paces: Vec<Pace>,
    /// Updates since the last change, up to the interval.
    since: u32,
    least_gain: f64,
    interval: u32,
}

impl Shares {
    /// Divides equally, whatever is measured.
    pub fn equal(ranks: usize) -> Self {
        Self {
            division: Division::equal(ranks),
            paces: Vec::new(),
            since: 0,
            least_gain: 0.,
            interval: 0,
        }
    }

    /// Divides among this many ranks by what is measured.
    pub fn builder(ranks: usize) -> SharesBuilder {
        SharesBuilder::new(ranks)
    }

    /// Begins with this division, such as a resumed loader's, if batches are divided by what is measured.
    pub(crate) fn begin_with(&mut self, division: &Division) {
        if !self.paces.is_empty() && division.ranks() == self.division.ranks() {
            self.division = division.clone();
        }
    }

    /// Returns how batches are to be divided now.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// Records what each rank measured in an update, in the order of the ranks. Returns whether the division has changed.
    ///
    /// Times that are not positive numbers do not count, nor do updates in which a rank had no samples.
    ///
    /// # Errors
    /// [`DataError::Setting`] if there is not one measurement for each rank. Nothing changes then.
    pub fn observe(&mut self, efforts: &[Effort]) -> Result<bool> {
        let (found, ranks) = (efforts.len(), self.division.ranks());
        if found != ranks {
            let problem = format!("shares of {ranks} ranks need as many measurements, got {found}");
            return Err(DataError::Setting(problem).into());
        }
        for (pace, effort) in self.paces.iter_mut().zip(efforts) {
            if let Some(measured) = effort.pace() {
                pace.observe(measured);
            }
        }
        self.since = self.since.saturating_add(1).min(self.interval);
        let samples = efforts.iter().map(|effort| effort.samples);
        let batch = samples.fold(0, usize::saturating_add);
        let better = match self.since >= self.interval {
            true => self.better(batch),
            false => None,
        };
        if let Some(division) = better {
            (self.division, self.since) = (division, 0);
            return Ok(true);
        }
        Ok(false)
    }

    /// A division of such batches with which the slowest rank is done enough sooner.
    fn better(&self, batch: usize) -> Option<Division> {
        let known = || self.paces.iter().filter_map(Pace::mean);
        // A rank that had no samples yet is taken to be as slow as the slowest.
        let slowest = known().max_by(f64::total_cmp)?;
        let is_new = |pace: &Pace| pace.mean().is_some() && pace.updates() < MEASURED;
        if self.paces.iter().any(is_new) {
            return None;
        }
        let means: Vec<_> = self
            .paces
            .iter()
            .map(|pace| pace.mean().unwrap_or(slowest))
            .collect();
        let current: Vec<_> = self
            .division
            .parts(batch)
            .iter()
            .map(ExactSizeIterator::len)
            .collect();
        let parts = divide::parts(batch, &means);
        let times = |parts: &[usize]| -> Vec<f64> {
            let times = parts.iter().zip(&means);
            times.map(|(part, mean)| *part as f64 * mean).collect()
        };
        let longest = |times: Vec<f64>| {
            times
                .into_iter()
                .enumerate()
                .max_by(|(_, a), (_, b)| a.total_cmp(b))
        };
        let (rank, now) = longest(times(&current))?;
        let (_, then) = longest(times(&parts))?;
        let margin = self.paces.get(rank).map_or(0., Pace::margin);
        let is_better = 1. - then / now > self.least_gain.max(margin);
        is_better.then(|| Division::weighted(parts).ok()).flatten()
    }
}
