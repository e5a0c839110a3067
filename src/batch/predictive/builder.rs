/// The part of the room that is left free by default, and the largest that can be.
const MARGIN: f64 = 0.01;
pub(super) const MOST_MARGIN: f64 = 0.9;

/// Options of [`Predictive`](super::Predictive).
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use = "call `build()`"]
pub struct PredictiveBuilder {
    pub(super) margin: f64,
    pub(super) most: usize,
}

impl Default for PredictiveBuilder {
    fn default() -> Self {
        Self {
            margin: MARGIN,
            most: usize::MAX,
        }
    }
}

impl PredictiveBuilder {
    /// Sets the part of the room to leave free, from 0 to 0.9; 0.01 by default. More is left free where the model is less certain
    /// than that.
    pub fn margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the largest size, in samples. It is used as it is, with a smaller rest at the end of the batch.
    pub fn at_most(mut self, size: usize) -> Self {
        self.most = size;
        self
    }
}
