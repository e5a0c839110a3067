/// The largest part of the room that can be left free.
pub(super) const MOST_MARGIN: f64 = 0.9;

/// Options of [`Predictive`](super::Predictive).
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use = "call `build()`"]
pub struct PredictiveBuilder {
    /// `None` for the default.
    pub(super) margin: Option<f64>,
    pub(super) most: usize,
    pub(super) minds_speed: bool,
}

impl Default for PredictiveBuilder {
    fn default() -> Self {
        Self {
            margin: None,
            most: usize::MAX,
            minds_speed: true,
        }
    }
}

impl PredictiveBuilder {
    /// Sets the part of the room to leave free, from 0 to 0.9. More is left free where the model is less certain than that.
    ///
    /// By default 1 % is left free. Less is left free where the batch then takes one part fewer, if it has up to 16 parts, and the
    /// size likely fits, by a model that was compared with at least 32 peaks and was off by little. If that size does not last, it is
    /// avoided as a failed one is. A margin that is set here is not used in this way.
    pub fn margin(mut self, margin: f64) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets the largest size, in samples. It is used as it is, with a smaller rest at the end of the batch.
    pub fn at_most(mut self, size: usize) -> Self {
        self.most = size;
        self
    }

    /// Uses the largest size that fits even if a smaller one is as fast, so that sizes depend on memory alone. Marked regions are then
    /// recomputed only where one sample does not fit otherwise.
    pub fn regardless_of_speed(mut self) -> Self {
        self.minds_speed = false;
        self
    }
}
