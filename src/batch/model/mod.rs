//! What a micro-batch of a given size will take, from what others have taken.

mod learn;
mod level;
mod reach;
mod state;
mod words;

use std::fmt;

use bytesize::ByteSize;

use self::level::Level;
use crate::error::{PolicyError, Result};

/// How many different costs are remembered.
const LEVELS: usize = 16;
/// How many mean deviations an observation may lie above the prediction: some 2.4 standard deviations of a normal one.
const DEVIATIONS: f64 = 3.;
/// No cost counts for more, so that sums of them do not overflow.
pub(in crate::batch) const MOST_COST: usize = usize::MAX / 64;

/// What micro-batches take of memory, depending on their cost: learned from those that ran, and learned anew as they
/// change.
///
/// Bytes are those above what was in use before the micro-batch began, at its peak. The cost is whatever memory grows with:
/// the number of samples, or of elements where samples differ in length ([`Batch::cost`](crate::Batch::cost)).
///
/// It expects a base and something for each unit, but holds no curve to that. Between costs that it has seen it goes by
/// those. Beyond them it reckons in proportion to the largest, which errs on the large side for every curve that is the
/// highest of several lines, as a step's peak is; and once the line through smaller costs has told what a larger one took,
/// by that line and up to a quarter more, the more the farther. Beyond eight times the largest cost (sixteen, where only
/// one was seen) it finds nothing to fit. The first observation holds what is allocated once and for ever; it counts only
/// until there is a second. Three observations in a row that contradict the others are a new curve, and the others are
/// forgotten. At most 16 costs are remembered, those seen last.
///
/// ```
/// use candle_headroom::MemoryModel;
///
/// let mut model = MemoryModel::new();
/// model.observe(1, 700)?; // with what is allocated once
/// for size in [1, 2, 4, 8] {
///     model.observe(size, 100 + 10 * size as u64)?;
/// }
/// assert_eq!((model.base(), model.slope()), (Some(100), Some(10.)));
/// assert_eq!(model.predict(6).unwrap().bytes, 160);
/// assert_eq!(model.predict(12).unwrap().bytes, 220);
/// let fits = model.largest_fitting(300).unwrap();
/// assert!((16..=20).contains(&fits)); // carefully: 8 is the most it has seen
/// assert_eq!(model.largest_fitting(50), None); // not even the base
/// assert_eq!(model.to_string(), "base 100 B, 10 B each, seen up to 8");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "state::State", into = "state::State")]
pub struct MemoryModel {
    /// By rising cost.
    levels: Vec<Level>,
    observed: u64,
    /// The mean deviation of observations from what was predicted, as a part of it.
    scatter: f64,
    /// Whether the slope of smaller costs told what the largest took.
    slope_holds: bool,
    /// What samples of another shape were seen to take besides themselves, in bytes.
    assumed_base: u64,
    /// The last observations, as cost and bytes, if they contradict what was seen before.
    held: Vec<(usize, u64)>,
}

/// What a [`MemoryModel`] expects of a micro-batch, in bytes above what is in use before it.
///
/// ```
/// use candle_headroom::MemoryModel;
///
/// let mut model = MemoryModel::new();
/// model.observe(4, 400)?;
/// let prediction = model.predict(8).unwrap();
/// assert_eq!((prediction.bytes, prediction.most), (800, 800)); // nothing speaks for a base yet
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    /// What is most likely.
    pub bytes: u64,
    /// What it should not exceed: the difference to [`bytes`](Self::bytes) is the prediction's uncertainty, from the
    /// scatter of what was observed and from how far beyond it the cost lies.
    pub most: u64,
}

impl MemoryModel {
    /// A model that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns that a micro-batch of this cost took `bytes` above what was in use before.
    ///
    /// # Errors
    /// [`PolicyError::Zero`] for a cost of 0.
    pub fn observe(&mut self, cost: usize, bytes: u64) -> Result<()> {
        if cost == 0 {
            let what = "a micro-batch's cost";
            return Err(PolicyError::Zero { what }.into());
        }
        let cost = cost.min(MOST_COST);
        self.observed = self.observed.saturating_add(1);
        if self.observed == 2 {
            self.levels.clear(); // the first one, with what was allocated once
        }
        if self.contradicts(cost, bytes) {
            self.hold(cost, bytes);
            return Ok(());
        }
        self.held.clear();
        self.note_scatter(cost, bytes);
        self.verify(cost, bytes);
        self.insert(cost, bytes);
        Ok(())
    }

    /// The largest cost seen, of those that are remembered; `None` before the first observation.
    pub fn largest_seen(&self) -> Option<usize> {
        self.levels.last().map(|level| level.cost)
    }

    /// Expects costs below those that were seen to take at least this, in bytes.
    pub(super) fn assume_base(&mut self, bytes: u64) {
        self.assumed_base = bytes;
    }

    /// Whether only one cost is known, so that base and slope cannot be told apart.
    pub(super) fn is_single(&self) -> bool {
        self.levels.len() == 1
    }

    /// The mean deviation of observations from what was predicted, as a part of it.
    pub(super) fn scatter(&self) -> f64 {
        self.scatter
    }

    /// What a micro-batch of this cost will take; `None` before the first observation.
    pub fn predict(&self, cost: usize) -> Option<Prediction> {
        let bytes = self.expected(cost)?;
        Some(Prediction {
            bytes: bytes as u64,
            most: self.most(cost)?.max(bytes) as u64,
        })
    }

    /// The largest cost that should take no more than `bytes`; `None` where nothing is known or nothing fits.
    pub fn largest_fitting(&self, bytes: u64) -> Option<usize> {
        self.largest_within(bytes, bytes)
    }

    /// The largest cost that should take no more than `most` and most likely takes no more than `likely`, both in bytes.
    pub(super) fn largest_within(&self, most: u64, likely: u64) -> Option<usize> {
        let fits = |cost: usize| {
            let is_certain = self.most(cost)? <= most as f64;
            Some(is_certain && self.expected(cost)? <= likely as f64)
        };
        let (mut low, mut high) = (0, self.farthest()?);
        if fits(high)? {
            return Some(high);
        }
        // What is expected at most does not fall as the cost rises.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match fits(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        (low > 0).then_some(low)
    }

    /// What a micro-batch of no cost would take, in bytes; `None` with fewer than two costs seen.
    pub fn base(&self) -> Option<u64> {
        let slope = self.slope()?;
        let levels = self.levels.iter();
        let base = median(levels.map(|level| level.mean as f64 - slope * level.cost as f64))?;
        Some(base.max(0.) as u64)
    }

    /// What each unit of cost takes, in bytes: the median over pairs of costs seen (Theil 1950, Sen 1968), so that single
    /// ones that are off do not move it; `None` with fewer than two costs seen.
    pub fn slope(&self) -> Option<f64> {
        let pairs = self.levels.iter().enumerate().flat_map(|(index, high)| {
            let lower = self.levels.iter().take(index);
            lower.map(move |low| high.slope_from(low))
        });
        Some(median(pairs)?.max(0.))
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl fmt::Display for MemoryModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(top) = self.levels.last() else {
            return f.write_str("nothing seen yet");
        };
        let (mean, seen) = (ByteSize(top.mean), top.cost);
        match (self.base(), self.slope()) {
            (Some(base), Some(slope)) => write!(
                f,
                "base {}, {} each, seen up to {seen}",
                ByteSize(base),
                ByteSize(slope as u64),
            ),
            _ => write!(f, "{mean} for {seen}, nothing else seen yet"),
        }
    }
}
