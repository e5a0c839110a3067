use crate::error::Result;
use crate::optim::rule::Range;

/// A factor on the loss that keeps the gradients of f16 parameters from vanishing; for
/// [`FusedBuilder::loss_scale`](super::FusedBuilder::loss_scale).
///
/// A step with a gradient that is not finite is skipped, and the scale falls; after a number of steps without a skip it grows. The
/// rule and its numbers are those of PyTorch's `GradScaler`, after Micikevicius et al. 2017 (arXiv 1710.03740).
///
/// ```
/// use candle_headroom::optim::LossScale;
///
/// assert_eq!(LossScale::dynamic().initial, 65536.);
/// assert_eq!(LossScale::fixed(1024.).growth, 1.);
/// assert_eq!(LossScale::dynamic().interval(500).backoff, 0.5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LossScale {
    /// The first scale.
    pub initial: f64,
    /// Factor on the scale after `interval` steps without a skip; at least 1.
    pub growth: f64,
    /// Factor on the scale after a skipped step; above 0, at most 1.
    pub backoff: f64,
    /// Steps without a skip before the scale grows.
    pub interval: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self::dynamic()
    }
}

impl LossScale {
    /// Starts at 65,536, doubles after 2,000 steps without a skip, and halves at each skip.
    pub fn dynamic() -> Self {
        Self {
            initial: 65536.,
            growth: 2.,
            backoff: 0.5,
            interval: 2000,
        }
    }

    /// Always the same scale. A step with a gradient that is not finite is still skipped.
    pub fn fixed(scale: f64) -> Self {
        Self {
            initial: scale,
            growth: 1.,
            backoff: 1.,
            interval: 1,
        }
    }

    /// Sets the first scale.
    pub fn initial(self, initial: f64) -> Self {
        Self { initial, ..self }
    }

    /// Sets the factor after `interval` steps without a skip.
    pub fn growth(self, growth: f64) -> Self {
        Self { growth, ..self }
    }

    /// Sets the factor after a skipped step.
    pub fn backoff(self, backoff: f64) -> Self {
        Self { backoff, ..self }
    }

    /// Sets the number of steps without a skip before the scale grows.
    pub fn interval(self, interval: u64) -> Self {
        Self { interval, ..self }
    }

    pub(super) fn check(&self, optimizer: &'static str) -> Result<()> {
        let interval = self.interval as f64;
        Range::Scale.check(optimizer, "loss_scale.initial", self.initial)?;
        Range::Multiple.check(optimizer, "loss_scale.growth", self.growth)?;
        Range::Part.check(optimizer, "loss_scale.backoff", self.backoff)?;
        Range::Positive.check(optimizer, "loss_scale.interval", interval)
    }
}
