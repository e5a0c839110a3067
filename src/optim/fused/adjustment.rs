use super::loss_scale::LossScale;
use crate::error::Result;
use crate::optim::rule::Range;

/// What happens to all gradients before an update rule sees them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Adjustment {
    pub clip_norm: Option<f64>,
    pub clip_value: Option<f64>,
    pub skips_non_finite: bool,
    pub loss_scale: Option<LossScale>,
}

impl Adjustment {
    pub fn check(&self, optimizer: &'static str) -> Result<()> {
        let check = |name, clip: Option<f64>| {
            clip.map_or(Ok(()), |value| {
                Range::Positive.check(optimizer, name, value)
            })
        };
        check("clip_norm", self.clip_norm)?;
        check("clip_value", self.clip_value)?;
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

/// What is counted from step to step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
            scale: adjustment.loss_scale.map_or(1., |scale| scale.initial),
            ..Self::default()
        }
    }

    /// Counts a step and returns the factor on its gradients, or `None` if the step is skipped. `squares` is the sum of the squares of
    /// all gradients, NaN if one of them is not finite, and `None` without a survey.
    pub fn count(&mut self, squares: Option<f64>, adjustment: &Adjustment) -> Option<f64> {
        let unscale = 1. / self.scale;
        let Some(squares) = squares else {
            self.steps = self.steps.saturating_add(1);
            return Some(unscale);
        };
        let is_finite = !squares.is_nan();
        if let Some(scale) = adjustment.loss_scale {
            let streak = self.streak.saturating_add(1);
            let factor;
            (factor, self.streak) = match is_finite {
                false => (scale.backoff, 0),
                true if streak >= scale.interval => (scale.growth, 0),
                true => (1., streak),
            };
            // A loss is multiplied in f32, so the scale stays in its range.
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
        // As in PyTorch's `clip_grad_norm_`, with the 1e-6 that guards against a norm of 0.
        let clip = adjustment.clip_norm.map(|most| most / (norm + 1e-6));
        Some(unscale * clip.unwrap_or(1.).min(1.))
    }
}

/// Counts of an optimizer's steps; from [`Fused::progress`](super::Fused::progress).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::Sgd;
///
/// let w = Var::new(&[3f32, 4.], &Device::Cpu)?;
/// let mut optimizer = Sgd::builder(vec![w.clone()]).clip_norm(1.).build()?;
/// optimizer.commit(&(w.sqr()?.sum_all()? / 2.)?.backward()?)?;
/// let progress = optimizer.progress()?;
/// assert_eq!((progress.steps, progress.skipped), (1, 0));
/// assert_eq!(progress.gradient_norm, Some(5.));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Steps that were applied, including those in which no parameter had a gradient.
    pub steps: u64,
    /// Steps that were skipped because a gradient was not finite.
    pub skipped: u64,
    /// The scale of the next loss; `None` without a loss scale.
    pub loss_scale: Option<f64>,
    /// The last step's global norm over all gradients, before clipping and without the loss scale. NaN if a gradient was not
    /// finite; `None` without clipping by norm, a loss scale or `skip_non_finite`.
    pub gradient_norm: Option<f64>,
}
