//! How a batch is divided among ranks: a pure function of its size and the weights, so that all ranks agree without a message.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, invalid};

/// The largest sum of weights, so that products with numbers of samples cannot overflow.
const MOST: usize = usize::MAX >> 8;

/// How the samples of each batch are divided among ranks: in equal parts, or in proportion to whole weights.
///
/// Each rank has a run of the batch's samples, in the order of the ranks. The parts always add up to the batch, and a batch with at
/// least as many samples as ranks leaves no rank without one. A batch of as many samples as the sum of the weights is divided exactly
/// by them. It serializes as the list of its weights.
///
/// ```
/// use candle_headroom::batch::Division;
///
/// assert_eq!(Division::equal(2).parts(9), [0..4, 4..9]);
/// let division = Division::weighted([2, 1])?;
/// assert_eq!(division.parts(9), [0..6, 6..9]);
/// assert_eq!(division.parts(2), [0..1, 1..2]);
/// assert_eq!(division.parts(1), [0..1, 1..1]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Division {
    ranks: usize,
    /// `None` for equal parts. They are not all equal, their sum is from 1 to `MOST`.
    weights: Option<Arc<[usize]>>,
}

impl Division {
    /// Divides each batch equally: of `m` samples, rank `r` of `n` has those from `m * r / n` to `m * (r + 1) / n`.
    pub fn equal(ranks: usize) -> Self {
        Self {
            ranks: ranks.max(1),
            weights: None,
        }
    }

    /// Divides each batch in proportion to these weights, one for each rank. Equal weights are the same as
    /// [`equal`](Self::equal) parts.
    ///
    /// # Errors
    /// An [error of data](Error::is_data) if there are no weights, if all are 0, or if their sum is too large.
    pub fn weighted(weights: impl Into<Vec<usize>>) -> Result<Self> {
        Self::try_from(weights.into())
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns whether all ranks have equal parts.
    pub fn is_equal(&self) -> bool {
        self.weights.is_none()
    }

    /// Returns the part of one rank in a batch of this many samples; none for a rank that does not exist.
    ///
    /// ```
    /// use candle_headroom::batch::Division;
    ///
    /// let division = Division::weighted([3, 1])?;
    /// assert_eq!(division.part(0, 8), 0..6);
    /// assert_eq!(division.part(1, 8), 6..8);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn part(&self, rank: usize, samples: usize) -> Range<usize> {
        match &self.weights {
            None => self.cut(rank, samples)..self.cut(rank.saturating_add(1), samples),
            Some(weights) => {
                let part = weighted(weights, samples).nth(rank);
                part.unwrap_or(samples..samples)
            }
        }
    }

    /// Returns the parts of all ranks in a batch of this many samples.
    pub fn parts(&self, samples: usize) -> Vec<Range<usize>> {
        match &self.weights {
            None => (0..self.ranks)
                .map(|rank| self.part(rank, samples))
                .collect(),
            Some(weights) => weighted(weights, samples).collect(),
        }
    }

    /// Where the equal part of a rank begins.
    fn cut(&self, rank: usize, samples: usize) -> usize {
        (samples as u128 * rank.min(self.ranks) as u128 / self.ranks as u128) as usize
    }
}

/// The division of a loader's next batches, which a trainer sets while the loader reads ahead; `None` until it was ever set.
#[derive(Debug, Default)]
pub(crate) struct SharedDivision(Mutex<Option<Division>>);

impl SharedDivision {
    pub(crate) fn get(&self) -> Option<Division> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, division: Option<&Division>) {
        *self.0.lock() = division.cloned();
    }
}

/// The parts between the rounded sums of the weights, moved so that no rank is left without a sample if there are enough.
fn weighted(weights: &[usize], samples: usize) -> impl Iterator<Item = Range<usize>> {
    let ranks = weights.len();
    let total: u128 = weights.iter().map(|weight| *weight as u128).sum();
    let least = usize::from(samples >= ranks);
    let (mut sum, mut start) = (0, 0);
    weights.iter().enumerate().map(move |(rank, weight)| {
        sum += *weight as u128;
        let end = (2 * sum * samples as u128 + total) / (2 * total);
        let after = least * (ranks - 1 - rank);
        let end = (end as usize).max(start + least).min(samples - after);
        std::mem::replace(&mut start, end)..end
    })
}

impl TryFrom<Vec<usize>> for Division {
    type Error = Error;

    fn try_from(weights: Vec<usize>) -> Result<Self> {
        let sum = weights
            .iter()
            .try_fold(0_usize, |sum, weight| sum.checked_add(*weight));
        if !sum.is_some_and(|sum| (1..=MOST).contains(&sum)) {
            return Err(invalid!(
                Data,
                "a division among ranks needs a weight for each rank, with a sum from 1 to {MOST}, got {weights:?}"
            ));
        }
        let is_equal = weights.windows(2).all(|pair| pair.first() == pair.last());
        Ok(Self {
            ranks: weights.len(),
            weights: (!is_equal).then(|| weights.into()),
        })
    }
}

impl From<Division> for Vec<usize> {
    fn from(division: Division) -> Self {
        match division.weights {
            None => vec![1; division.ranks],
            Some(weights) => weights.to_vec(),
        }
    }
}
