use serde::{Deserialize, Serialize};

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
        let check = |name, range: Range, value: f64| range.check(optimizer, name, value);
        Range::POSITIVE.check(optimizer, "clip_norm", self.clip_norm)?;
        Range::POSITIVE.check(optimizer, "clip_value", self.clip_value)?;
        let Some(scale) = self.loss_scale else {
            return Ok(());
        };
        check("loss_scale.initial", Range::SCALE, scale.initial)?;
        check("loss_scale.growth", Range::MULTIPLE, scale.growth)?;
        check("loss_scale.backoff", Range::PART, scale.backoff)?;
        check(
            "loss_scale.interval",
            Range::POSITIVE,
            scale.interval as f64,
        )
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
///
/// ```
/// use candle_headroom::optim::LossScale;
///
/// // In a short run it grows sooner than after 2,000 steps.
/// let scale = LossScale::dynamic().interval(200);
/// assert_eq!((scale.initial, scale.interval), (65536., 200));
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
    ///
    /// ```
    /// use candle_headroom::optim::LossScale;
    ///
    /// let scale = LossScale::dynamic();
    /// assert_eq!((scale.growth, scale.backoff, scale.interval), (2., 0.5, 2000));
    /// ```
    pub fn dynamic() -> Self {
        Self {
            initial: 65536.,
            growth: 2.,
            backoff: 0.5,
            interval: 2000,
        }
    }

    /// Always the same scale. A step with a gradient that is not finite is still skipped.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::LossScale;
    /// use candle_nn::Optimizer;
    ///
    /// let w = Var::new(0f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).loss_scale(LossScale::fixed(1024.)).build()?;
    /// optimizer.backward_step(&w.sqrt()?)?; // its slope is infinite at 0
    /// let progress = optimizer.progress()?;
    /// assert_eq!((progress.skipped, progress.loss_scale), (1, Some(1024.)));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn fixed(scale: f64) -> Self {
        Self {
            initial: scale,
            growth: 1.,
            backoff: 1.,
            interval: 1,
        }
    }

    /// Sets the first scale: above 0 and in the range of f32, in which losses are multiplied.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::LossScale;
    /// use candle_nn::Optimizer;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let scale = LossScale::dynamic().initial(1024.);
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).loss_scale(scale).build()?;
    /// assert_eq!(optimizer.progress()?.loss_scale, Some(1024.));
    /// optimizer.backward_step(&w.sqr()?)?;
    /// assert_eq!(optimizer.progress()?.loss_scale, Some(1024.)); // until 2,000 steps are done
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn initial(self, initial: f64) -> Self {
        Self { initial, ..self }
    }

    /// Sets the factor after `interval` steps without a skip: at least 1.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::LossScale;
    /// use candle_nn::Optimizer;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let scale = LossScale::dynamic().initial(1024.).growth(4.).interval(1);
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).loss_scale(scale).build()?;
    /// optimizer.backward_step(&w.sqr()?)?;
    /// assert_eq!(optimizer.progress()?.loss_scale, Some(4096.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn growth(self, growth: f64) -> Self {
        Self { growth, ..self }
    }

    /// Sets the factor after a skipped step: above 0 and at most 1.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::LossScale;
    /// use candle_nn::Optimizer;
    ///
    /// let w = Var::new(0f32, &Device::Cpu)?;
    /// let scale = LossScale::dynamic().initial(1024.).backoff(0.25);
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).loss_scale(scale).build()?;
    /// optimizer.backward_step(&w.sqrt()?)?; // its slope is infinite at 0
    /// assert_eq!(optimizer.progress()?.loss_scale, Some(256.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn backoff(self, backoff: f64) -> Self {
        Self { backoff, ..self }
    }

    /// Sets the number of steps without a skip before the scale grows: at least 1.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::LossScale;
    /// use candle_nn::Optimizer;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let scale = LossScale::dynamic().initial(1024.).interval(2);
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).loss_scale(scale).build()?;
    /// optimizer.backward_step(&w.sqr()?)?;
    /// assert_eq!(optimizer.progress()?.loss_scale, Some(1024.));
    /// optimizer.backward_step(&w.sqr()?)?;
    /// assert_eq!(optimizer.progress()?.loss_scale, Some(2048.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn interval(self, interval: u64) -> Self {
        Self { interval, ..self }
    }
}

/// Counters of an optimizer's steps; from [`Fused::progress`](super::Fused::progress).
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::Commit;
///
/// let w = Var::new(4f32, &Device::Cpu)?;
/// let mut optimizer = AdamW::builder(vec![w.clone()]).clip_norm(1.).build()?;
/// optimizer.commit(&w.sqr()?.backward()?)?;
/// let progress = optimizer.progress()?;
/// assert_eq!((progress.steps, progress.skipped), (1, 0));
/// assert_eq!(progress.gradient_norm, Some(8.)); // before clipping
/// assert_eq!(progress.loss_scale, None);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
