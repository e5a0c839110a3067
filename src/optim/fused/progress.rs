use serde::{Deserialize, Serialize};

use super::adjustment::Adjustment;

/// Counters of an optimizer's steps; from [`Fused::progress`](super::Fused::progress).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Progress {
    /// Steps that were applied, including those in which no parameter had a gradient.
    pub steps: u64,
    /// Steps that were skipped because a gradient was not finite.
    pub skipped: u64,
    /// The scale of the next loss; `None` without a loss scale.
    pub loss_scale: Option<f64>,
    /// Steps since the loss scale last changed.
    pub streak: u64,
    /// The last step's global norm over all gradients, before clipping and without the loss scale. NaN if a gradient was not
    /// finite; `None` without clipping by norm, a loss scale or `skip_non_finite`.
    #[serde(skip)]
    pub gradient_norm: Option<f64>,
}

impl Progress {
    pub(crate) fn new(adjustment: &Adjustment) -> Self {
        Self {
            loss_scale: adjustment.loss_scale.map(|scale| scale.initial),
            ..Self::default()
        }
    }

    pub(crate) fn scale(&self) -> f64 {
        self.loss_scale.unwrap_or(1.)
    }

    /// Counts a step and returns the factor on its gradients, or `None` if the step is skipped. `squares` is the sum of the squares of
    /// all gradients, NaN if one of them is not finite, and `None` without a survey.
    pub(crate) fn count(&mut self, squares: Option<f64>, adjustment: &Adjustment) -> Option<f64> {
        let unscale = 1. / self.scale();
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
            let next = self.scale() * factor;
            if (next as f32).is_normal() {
                self.loss_scale = Some(next);
            }
        }
        let norm = squares.sqrt() * unscale;
        self.gradient_norm = Some(norm);
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
