use crate::error::Result;
use crate::optim::rule::Range;

/// Changes to all gradients before an update rule uses them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Adjustment {
    pub clip_norm: Option<f64>,
    pub clip_value: Option<f64>,
    pub skips_non_finite: bool,
    pub loss_scale: Option<LossScale>,
}

impl Adjustment {
    pub fn check(&self, optimizer: &'static str) -> Result<()> {
        let clips = [
            ("clip_norm", self.clip_norm),
            ("clip_value", self.clip_value),
        ];
        for (name, clip) in clips {
            clip.map_or(Ok(()), |clip| Range::POSITIVE.check(optimizer, name, clip))?;
        }
        let scale = self.loss_scale;
        scale.map_or(Ok(()), |scale| scale.check(optimizer))
    }

    /// Whether all gradients have to be read before the first parameter is updated.
    pub fn needs_survey(&self) -> bool {
        self.clip_norm.is_some() || self.skips_non_finite || self.loss_scale.is_some()
    }

    pub fn bound(&self) -> f64 {
        self.clip_value.unwrap_or(f64::INFINITY)
    }
}

/// A factor on the loss that keeps the gradients of f16 parameters from vanishing; for
/// [`FusedBuilder::loss_scale`](super::FusedBuilder::loss_scale).
///
/// A step with a gradient that is not finite is skipped, and the scale falls; after a number of steps without a skip it grows. The
/// rule and its numbers are those of PyTorch's `GradScaler`, after Micikevicius et al. 2017 (arXiv 1710.03740).
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

    fn check(&self, optimizer: &'static str) -> Result<()> {
        let check = |name, range: Range, value| range.check(optimizer, name, value);
        check("loss_scale.initial", Range::SCALE, self.initial)?;
        check("loss_scale.growth", Range::MULTIPLE, self.growth)?;
        check("loss_scale.backoff", Range::PART, self.backoff)?;
        check("loss_scale.interval", Range::POSITIVE, self.interval as f64)
    }
}
