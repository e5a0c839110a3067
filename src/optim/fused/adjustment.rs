use crate::error::Result;
use crate::optim::rule::Range;

use super::check::hyper_parameter;

/// By what a loss is multiplied, so that the gradients of f16 parameters do not vanish; from [`FusedBuilder::loss_scale`](super::FusedBuilder::loss_scale).
///
/// A step whose gradients are not all finite is skipped, and the scale falls; after a number of steps without one it grows. The
/// rule and its numbers are those of PyTorch's `GradScaler`, after Micikevicius et al. 2017 (arXiv 1710.03740).
///
/// ```
/// use candle_headroom::LossScale;
///
/// assert_eq!(LossScale::dynamic().initial, 65536.);
/// assert_eq!(LossScale::fixed(1024.).growth, 1.);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    /// The scale that is begun with.
    pub initial: f64,
    /// By what it is multiplied after `interval` steps without a skip.
    pub growth: f64,
    /// By what it is multiplied when a step is skipped.
    pub backoff: f64,
    /// Steps without a skip until it grows.
    pub interval: u64,
}

impl LossScale {
    /// Begins at 65,536, doubles after 2,000 steps without a skip, and halves at each skip.
    pub fn dynamic() -> Self {
        Self {
            initial: 65536.,
            growth: 2.,
            backoff: 0.5,
            interval: 2000,
        }
    }

    /// Always the same scale. Steps whose gradients are not finite are skipped all the same.
    pub fn fixed(scale: f64) -> Self {
        Self {
            initial: scale,
            growth: 1.,
            backoff: 1.,
            interval: 1,
        }
    }

    fn check(&self, optimizer: &'static str) -> Result<()> {
        let interval = self.interval as f64;
        for (name, value, range) in [
            ("the loss scale", self.initial, Range::Scale),
            ("the loss scale's growth", self.growth, Range::Multiple),
            ("the loss scale's backoff", self.backoff, Range::Part),
            ("the loss scale's interval", interval, Range::Positive),
        ] {
            hyper_parameter(optimizer, name, value, range)?;
        }
        Ok(())
    }
}

/// What is done to all gradients before a rule sees them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Adjustment {
    pub clip_norm: Option<f64>,
    pub clip_value: Option<f64>,
    pub skips_non_finite: bool,
    pub loss_scale: Option<LossScale>,
}

impl Adjustment {
    pub fn check(&self, optimizer: &'static str) -> Result<()> {
        for (name, value) in [
            ("clip_norm", self.clip_norm),
            ("clip_value", self.clip_value),
        ] {
            if let Some(value) = value {
                hyper_parameter(optimizer, name, value, Range::Positive)?;
            }
        }
        self.loss_scale
            .map_or(Ok(()), |scale| scale.check(optimizer))
    }

    /// Whether all gradients have to be looked at before the first parameter moves.
    pub fn needs_survey(&self) -> bool {
        self.clip_norm.is_some() || self.skips_non_finite || self.loss_scale.is_some()
    }

    pub fn bound(&self) -> f64 {
        self.clip_value.unwrap_or(f64::INFINITY)
    }
}

/// What is counted from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counters {
    pub steps: u64,
    pub skipped: u64,
    pub scale: f64,
    /// Steps since the scale last changed.
    pub streak: u64,
    pub norm: Option<f64>,
}

impl Counters {
    pub fn new(adjustment: &Adjustment) -> Self {
        Self {
            steps: 0,
            skipped: 0,
            scale: adjustment.loss_scale.map_or(1., |scale| scale.initial),
            streak: 0,
            norm: None,
        }
    }

    /// Counts a step whose gradients have this sum of squares (not a number where one of them is not finite), if anybody looked;
    /// and returns what they are to be multiplied by, or `None` where the step is skipped.
    pub fn count(&mut self, squares: Option<f64>, adjustment: &Adjustment) -> Option<f64> {
        let unscale = 1. / self.scale;
        let Some(squares) = squares else {
            self.steps = self.steps.saturating_add(1);
            return Some(unscale);
        };
        let is_finite = !squares.is_nan();
        if let Some(scale) = adjustment.loss_scale {
            self.streak = if is_finite {
                self.streak.saturating_add(1)
            } else {
                0
            };
            let grows = is_finite && self.streak >= scale.interval;
            let factor = match (is_finite, grows) {
                (false, _) => scale.backoff,
                (_, true) => scale.growth,
                _ => 1.,
            };
            if grows {
                self.streak = 0;
            }
            // Beyond f32 it could not be multiplied with a loss.
            let next = self.scale * factor;
            if (next as f32).is_normal() {
                self.scale = next;
            }
        }
        let norm = squares.sqrt() * unscale;
        self.norm = Some(norm);
        if !is_finite {
            self.skipped = self.skipped.saturating_add(1);
            return None;
        }
        self.steps = self.steps.saturating_add(1);
        // As PyTorch's `clip_grad_norm_`, down to the millionth that guards against a norm of 0.
        let clip = adjustment.clip_norm.map(|most| most / (norm + 1e-6));
        Some(unscale * clip.unwrap_or(1.).min(1.))
    }
}

/// How far an optimizer has come; from [`Fused::progress`](super::Fused::progress).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::Sgd;
///
/// let w = Var::new(&[3f32, 4.], &Device::Cpu)?;
/// let mut optimizer = Sgd::builder(Default::default()).group(vec![w.clone()]).clip_norm(1.).build()?;
/// optimizer.commit(&(w.sqr()?.sum_all()? / 2.)?.backward()?)?;
/// let progress = optimizer.progress()?;
/// assert_eq!((progress.steps, progress.skipped), (1, 0));
/// assert_eq!(progress.gradient_norm, Some(5.));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Steps that were made, also those for which no parameter had a gradient.
    pub steps: u64,
    /// Steps that were skipped, because a gradient was not finite.
    pub skipped: u64,
    /// By what the next loss is to be multiplied; `None` without a loss scale.
    pub loss_scale: Option<f64>,
    /// The last step's global norm over all gradients, before clipping and without the loss scale; not a number where one of them
    /// was not finite; `None` where nothing asked for it.
    pub gradient_norm: Option<f64>,
}
