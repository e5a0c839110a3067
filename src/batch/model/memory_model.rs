use serde::{Deserialize, Serialize};

use super::level::{LEVELS, Level, MOST_COST};

/// Predicts the memory that a micro-batch takes from its cost, learned from the micro-batches that ran.
///
/// Bytes are the peak above what was in use before the micro-batch began. The cost is the quantity that memory grows with:
/// the number of samples, or of elements where samples differ in length ([`Extent::cost`](crate::batch::Extent::cost)).
///
/// - Between costs that it has seen, it interpolates.
/// - Above the largest, it assumes proportional growth, which is never too little for a curve that is the maximum of several
///   lines, as a step's peak is. Once the line through smaller costs has predicted a larger one, it uses that line plus up
///   to a quarter, the more the farther the cost lies.
/// - No cost beyond eight times the largest (sixteen times if only one was seen) is said to fit.
/// - The first observation includes what is allocated once, so it counts only until there is a second.
/// - Three observations in a row that contradict the others start a new curve; the others are forgotten.
/// - At most 16 costs are remembered, those seen last.
///
/// ```
/// use candle_headroom::batch::MemoryModel;
///
/// let mut model = MemoryModel::new();
/// model.observe(1, 700); // with what is allocated once
/// for size in [1, 2, 4, 8] {
///     model.observe(size, 100 + 10 * size as u64);
/// }
/// assert_eq!((model.base(), model.slope()), (Some(100), Some(10.)));
/// assert_eq!(model.predict(6), Some(160));
/// assert_eq!(model.predict(12), Some(220));
/// let fits = model.largest_fitting(300).unwrap();
/// assert!((16..=20).contains(&fits)); // carefully: 8 is the most it has seen
/// assert_eq!(model.largest_fitting(50), None); // not even the base
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryModel {
    /// In ascending order of cost.
    pub(super) levels: Vec<Level>,
    pub(super) observed: u64,
    /// The mean relative deviation of observations from predictions. An `f32` survives JSON exactly.
    pub(super) scatter: f32,
    /// Whether the slope of smaller costs predicted what the largest took.
    pub(super) slope_holds: bool,
    /// The base that samples of another shape had, in bytes.
    pub(super) assumed_base: u64,
    /// The last observations, as cost and bytes, while they contradict what was seen before.
    #[serde(skip)]
    pub(super) held: Vec<(usize, u64)>,
}

impl MemoryModel {
    /// Creates a model without observations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an observation: a micro-batch of this cost (0 counts as 1) took `bytes` above what was in use before.
    pub fn observe(&mut self, cost: usize, bytes: u64) {
        let cost = cost.clamp(1, MOST_COST);
        self.observed = self.observed.saturating_add(1);
        if self.observed == 2 {
            self.levels.clear(); // the first one includes what was allocated once
        }
        if self.contradicts(cost, bytes) {
            self.hold(cost, bytes);
            return;
        }
        self.held.clear();
        self.note_scatter(cost, bytes);
        self.verify(cost, bytes);
        self.insert(cost, bytes);
    }

    /// Returns the bytes that a micro-batch of this cost most likely takes; `None` before the first observation.
    pub fn predict(&self, cost: usize) -> Option<u64> {
        Some(self.expected(cost)? as u64)
    }

    /// Returns the bytes that a micro-batch of this cost should not exceed. The difference to [`predict`](Self::predict) is the
    /// uncertainty: it comes from the scatter of the observations and from the distance to the largest cost seen.
    pub fn upper_bound(&self, cost: usize) -> Option<u64> {
        Some(self.most(cost)?.max(self.expected(cost)?) as u64)
    }

    /// Returns the largest cost that is remembered; `None` before the first observation.
    pub fn largest_seen(&self) -> Option<usize> {
        self.levels.last().map(|level| level.cost)
    }

    /// Returns the largest cost that should take no more than `bytes`; `None` if nothing is known or nothing fits.
    pub fn largest_fitting(&self, bytes: u64) -> Option<usize> {
        self.largest_within(bytes, bytes)
    }

    /// The largest cost that should take no more than `most` and most likely takes no more than `likely`, both in bytes.
    pub(in crate::batch) fn largest_within(&self, most: u64, likely: u64) -> Option<usize> {
        let fits = |cost: usize| {
            let is_certain = self.most(cost)? <= most as f64;
            Some(is_certain && self.expected(cost)? <= likely as f64)
        };
        let (mut low, mut high) = (0, self.farthest()?);
        if fits(high)? {
            return Some(high);
        }
        // The upper bound does not fall as the cost rises.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match fits(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        (low > 0).then_some(low)
    }

    /// Returns the intercept of the line, in bytes; `None` with fewer than two costs seen.
    pub fn base(&self) -> Option<u64> {
        let slope = self.slope()?;
        let levels = self.levels.iter();
        let base = median(levels.map(|level| level.mean as f64 - slope * level.cost as f64))?;
        Some(base.max(0.) as u64)
    }

    /// Returns the bytes for each unit of cost; `None` with fewer than two costs seen. This is the median over pairs of costs
    /// (Theil 1950, Sen 1968), so that outliers do not move it.
    pub fn slope(&self) -> Option<f64> {
        let pairs = self.levels.iter().enumerate().flat_map(|(index, high)| {
            let lower = self.levels.iter().take(index);
            lower.map(move |low| high.slope_from(low))
        });
        Some(median(pairs)?.max(0.))
    }

    /// Whether only one cost is known, so that base and slope cannot be told apart.
    pub(in crate::batch) fn is_single(&self) -> bool {
        self.levels.len() == 1
    }

    /// The mean relative deviation of observations from predictions.
    pub(in crate::batch) fn scatter(&self) -> f64 {
        self.scatter.into()
    }

    /// Sets the least that costs below those seen are expected to take, in bytes.
    pub(in crate::batch) fn assume_base(&mut self, bytes: u64) {
        self.assumed_base = bytes;
    }

    /// Whether observations can have led to this model, which was deserialized.
    pub(in crate::batch) fn is_possible(&self) -> bool {
        let is_possible =
            |level: &Level| (1..=MOST_COST).contains(&level.cost) && level.seen <= self.observed;
        self.levels.len() <= LEVELS
            && self.levels.len() as u64 <= self.observed
            && self.levels.iter().all(is_possible)
            && self.levels.is_sorted_by(|low, high| low.cost < high.cost)
            && (0. ..=1.).contains(&self.scatter)
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
