//! Predicts what a micro-batch takes from what others have taken.

mod learn;

use serde::{Deserialize, Serialize};

/// Costs are clamped to this, so that sums of them do not overflow.
pub(super) const MOST_COST: usize = usize::MAX / 64;
/// Mean deviations that an observation may lie above the prediction: about 2.4 standard deviations of a normal distribution.
const DEVIATIONS: f64 = 3.;
/// How many times the largest cost seen may be said to fit; more after the first cost, which is one sample as a rule.
const REACH: usize = 8;
const FIRST_REACH: usize = 16;
/// Fraction that is added to the slope for a cost of twice the largest seen, or more; less for one that is nearer.
const CAUTION: f64 = 0.25;
/// A second sample is tried if this part of the room (a sixteenth) is left beside one, or after this many observations.
const LEFT: f64 = 16.;
const MANY: u64 = 128;
/// Slopes are taken between costs that differ by at least this fraction of the larger one, because peaks scatter.
const APART: f64 = 0.2;

/// Predicts the memory that a micro-batch takes from its cost, learned from the micro-batches that ran.
///
/// Bytes are the peak above what was in use before the micro-batch began. The cost is the quantity that memory grows with:
/// the number of samples, or of elements where samples differ in length ([`Extent::cost`](crate::batch::Extent::cost)).
///
/// - Between costs that it has seen, it interpolates.
/// - Above the largest, a cost most likely takes what the line through smaller ones says. The upper bound assumes proportional
///   growth, which is never too little for a curve that is the maximum of several lines, as a step's peak is. Once the line has
///   predicted a larger cost, the bound is that line plus up to a quarter, the more the farther the cost lies. A line that has
///   done so only once may do so by chance, so beyond twice the largest half of the bound's slope is the proportional one.
/// - No cost beyond eight times the largest is said to fit, or sixteen times while it is the only one.
/// - Below the smallest, the upper bound does not fall, and at least half of what the smallest takes is expected to be base.
/// - The first observation includes what is allocated once, so it counts only until there is a second.
/// - Three observations in a row that contradict the others start a new curve; the others are forgotten.
/// - At most 16 costs are remembered, the smallest and those seen last.
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
#[serde(try_from = "Saved")]
pub struct MemoryModel {
    /// In ascending order of cost.
    levels: Vec<Level>,
    observed: u64,
    /// The mean relative deviation of observations from predictions. An `f32` survives JSON exactly.
    scatter: f32,
    /// How many times in a row the slope of smaller costs has predicted what a much larger one takes.
    verified: u8,
    /// The last observations, as cost and bytes, while they contradict what was seen before.
    held: Vec<(usize, u64)>,
}

impl MemoryModel {
    /// Creates a model without observations.
    ///
    /// ```
    /// use candle_headroom::batch::MemoryModel;
    ///
    /// assert_eq!(MemoryModel::new().predict(8), None);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes that a micro-batch of this cost most likely takes; `None` before the first observation.
    ///
    /// ```
    /// # use candle_headroom::batch::MemoryModel;
    /// let mut model = MemoryModel::new();
    /// for (size, bytes) in [(1, 700), (1, 110), (2, 120), (4, 140), (8, 180)] {
    ///     model.observe(size, bytes);
    /// }
    /// assert_eq!((model.predict(6), model.predict(12)), (Some(160), Some(220)));
    /// ```
    pub fn predict(&self, cost: usize) -> Option<u64> {
        Some(self.expected(cost)? as u64)
    }

    /// Returns the bytes that a micro-batch of this cost should not exceed. The difference to [`predict`](Self::predict) is the
    /// uncertainty: it comes from the scatter of the observations and from the distance to the largest cost seen.
    ///
    /// ```
    /// # use candle_headroom::batch::MemoryModel;
    /// let mut model = MemoryModel::new();
    /// for (size, bytes) in [(1, 700), (1, 110), (2, 120), (4, 140), (8, 180)] {
    ///     model.observe(size, bytes);
    /// }
    /// assert_eq!(model.upper_bound(6), Some(160)); // between costs that were seen
    /// assert_eq!(model.upper_bound(12), Some(225)); // 5 bytes above what is predicted
    /// ```
    pub fn upper_bound(&self, cost: usize) -> Option<u64> {
        Some(self.most(cost)?.max(self.expected(cost)?) as u64)
    }

    /// Returns the largest cost that is remembered; `None` before the first observation.
    ///
    /// ```
    /// # use candle_headroom::batch::MemoryModel;
    /// let mut model = MemoryModel::new();
    /// assert_eq!(model.largest_seen(), None);
    /// model.observe(8, 180);
    /// assert_eq!(model.largest_seen(), Some(8));
    /// ```
    pub fn largest_seen(&self) -> Option<usize> {
        self.levels.last().map(|level| level.cost)
    }

    /// Returns the largest cost that should take no more than `bytes`; `None` if nothing is known or nothing fits.
    ///
    /// ```
    /// # use candle_headroom::batch::MemoryModel;
    /// let mut model = MemoryModel::new();
    /// for (size, bytes) in [(1, 700), (1, 110), (2, 120), (4, 140), (8, 180)] {
    ///     model.observe(size, bytes);
    /// }
    /// assert_eq!(model.largest_fitting(225), Some(12));
    /// assert_eq!(model.largest_fitting(50), None);
    /// ```
    pub fn largest_fitting(&self, bytes: u64) -> Option<usize> {
        self.largest_within(bytes, bytes)
    }

    /// The largest cost that should take no more than `most` and most likely takes no more than `likely`, both in bytes.
    pub(super) fn largest_within(&self, most: u64, likely: u64) -> Option<usize> {
        let fits = |cost: usize| {
            let is_certain = self.most(cost)? <= most as f64;
            Some(is_certain && self.expected(cost)? <= likely as f64)
        };
        let reach = if self.is_single() { FIRST_REACH } else { REACH };
        let farthest = self.largest_seen()?.saturating_mul(reach);
        // The upper bound does not fall as the cost rises.
        let (mut low, mut above) = (0, farthest.saturating_add(1));
        while above - low > 1 {
            let middle = low + (above - low) / 2;
            match fits(middle)? {
                true => low = middle,
                false => above = middle,
            }
        }
        (low > 0).then_some(low)
    }

    /// Returns the intercept of the line, in bytes; `None` with fewer than two costs seen.
    ///
    /// ```
    /// # use candle_headroom::batch::MemoryModel;
    /// let mut model = MemoryModel::new();
    /// for (size, bytes) in [(1, 700), (1, 110)] {
    ///     model.observe(size, bytes);
    /// }
    /// assert_eq!(model.base(), None); // one cost may be base or not
    /// model.observe(3, 130);
    /// assert_eq!(model.base(), Some(100));
    /// ```
    pub fn base(&self) -> Option<u64> {
        let slope = self.slope()?;
        let levels = self.levels.iter();
        let base = median(levels.map(|level| level.mean as f64 - slope * level.cost as f64))?;
        Some(base.max(0.) as u64)
    }

    /// Returns the bytes for each unit of cost; `None` with fewer than two costs seen. This is the median over pairs of costs
    /// (Theil 1950, Sen 1968), so that outliers do not move it.
    ///
    /// ```
    /// # use candle_headroom::batch::MemoryModel;
    /// let mut model = MemoryModel::new();
    /// for (size, bytes) in [(1, 700), (1, 110), (3, 130)] {
    ///     model.observe(size, bytes);
    /// }
    /// assert_eq!(model.slope(), Some(10.));
    /// ```
    pub fn slope(&self) -> Option<f64> {
        let pairs = self.levels.iter().enumerate().flat_map(|(index, high)| {
            let lower = self.levels.iter().take(index);
            lower.map(move |low| high.slope_from(low))
        });
        Some(median(pairs)?.max(0.))
    }

    /// Whether only one cost is known, so that base and slope cannot be told apart.
    pub(super) fn is_single(&self) -> bool {
        self.levels.len() == 1
    }

    /// A cost above the largest seen, up to twice as much, that likely fits by the line through the smaller ones. After one
    /// `unit` alone it is two: one unit may be nearly all base, and proportional growth would never find room for more.
    pub(super) fn next_to_try(&self, bytes: u64, unit: usize) -> Option<usize> {
        let top = self.levels.last()?;
        let left = bytes as f64 - self.most(top.cost)?;
        let is_early = left < bytes as f64 / LEFT && self.observed < MANY;
        let more = match self.is_single() {
            true if self.observed < 2 || top.cost > unit || left <= 0. || is_early => return None,
            true => top.cost,
            false => {
                let slope = self.slope_to(top).max(1.);
                let more = (left / (slope * (1. + CAUTION))) as usize;
                more.max(if slope * unit as f64 <= left { unit } else { 0 })
            }
        };
        // A little more is not worth the risk.
        (more > top.cost / 16).then(|| top.cost.saturating_add(more.min(top.cost)))
    }

    /// The most likely value, in bytes.
    fn expected(&self, cost: usize) -> Option<f64> {
        self.curve(cost, 0, |top| self.slope_to(top))
    }

    /// The upper bound, in bytes; it does not fall as the cost rises.
    fn most(&self, cost: usize) -> Option<f64> {
        let cost = cost.max(self.levels.first()?.cost);
        let lower = self.levels.iter().take_while(|level| level.cost <= cost);
        let least = lower.map(|level| level.mean).max()?;
        let most = self.curve(cost, least, |top| {
            let far = (cost - top.cost) as f64 / top.cost as f64;
            let steep = self.slope_to(top) * (1. + CAUTION * far.min(1.));
            let steepest = top.proportion();
            match self.verified {
                0 => steepest,
                // Memory that others allocated meanwhile makes small costs look larger, and the slope too small.
                1 if far > 1. => steep + (steepest - steep).max(0.) / 2. * (1. - 1. / far),
                _ => steep,
            }
        })?;
        Some(most * (1. + DEVIATIONS * self.scatter()))
    }

    /// Linear between the levels, of which none counts as less than `least` bytes. Above them by `slope`, at most in proportion;
    /// below them as if at least half of the lowest were base.
    fn curve(&self, cost: usize, least: u64, slope: impl Fn(&Level) -> f64) -> Option<f64> {
        let value = |level: &Level| level.mean.max(least) as f64;
        let above = self.levels.iter().find(|level| level.cost >= cost);
        let below = self.levels.iter().rev().find(|level| level.cost <= cost);
        let (level, slope) = match (below, above) {
            (Some(low), Some(high)) if low.cost < high.cost => (
                low,
                (value(high) - value(low)) / (high.cost - low.cost) as f64,
            ),
            (Some(level), Some(_)) => (level, 0.),
            // Steeper than in proportion: a step lies between the costs that the slope was taken from.
            (Some(top), None) => (top, slope(top).min(top.proportion())),
            (None, Some(low)) => {
                let slope = self.slope_to(self.levels.last()?);
                (low, slope.min(low.proportion() / 2.))
            }
            (None, None) => return None,
        };
        Some(value(level) + slope * (cost as f64 - level.cost as f64))
    }

    /// Returns the bytes for each unit of cost below `top`: the slope from the nearest level well below it, or without such a
    /// level its proportion.
    fn slope_to(&self, top: &Level) -> f64 {
        let mut lower = self.levels.iter().rev();
        let low = lower.find(|low| low.cost as f64 <= (1. - APART) * top.cost as f64);
        low.map_or(top.proportion(), |low| top.slope_from(low).max(0.))
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Costs that differ by no more than this fraction (1/64) share a level.
const NEAR: usize = 64;

/// What micro-batches of one cost took, in bytes above what was in use before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    cost: usize,
    mean: u64,
    /// When it was last seen, counted in observations of the model.
    seen: u64,
}

impl Level {
    fn is_near(&self, cost: usize) -> bool {
        self.cost.abs_diff(cost) <= self.cost / NEAR
    }

    /// Bytes for each unit of cost from `low` to this level.
    fn slope_from(&self, low: &Self) -> f64 {
        (self.mean as f64 - low.mean as f64) / (self.cost as f64 - low.cost as f64)
    }

    /// Bytes for each unit of cost if there were no base.
    fn proportion(&self) -> f64 {
        self.mean as f64 / self.cost as f64
    }
}

/// A deserialized model, before it was checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    levels: Vec<Level>,
    observed: u64,
    scatter: f32,
    verified: u8,
    held: Vec<(usize, u64)>,
}
