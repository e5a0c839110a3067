//! Learning rates as pure functions of the step: a resumed run needs nothing but its number of updates.

use std::f64::consts::PI;

use super::rule::Range;
use crate::error::{Result, invalid};

/// The learning rate as a function of the step, counted from 0; for any optimizer.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::Commit;
/// use candle_headroom::{AdamW, LearningRate};
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = AdamW::builder(vec![w.clone()]).build()?;
/// let schedule = LearningRate::builder(1e-3).cosine(1000).floor(1e-5).warm_up(100).build()?;
/// for step in 0..10 {
///     optimizer.set_learning_rate(schedule.at(step));
///     optimizer.commit(&w.sqr()?.backward()?)?;
/// }
/// assert_eq!(schedule.at(99), 1e-3 * 100. / 101.);
/// assert_eq!(schedule.at(100), 1e-3);
/// assert_eq!(schedule.at(5000), 1e-5);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    peak: f64,
    shape: Shape,
    floor: f64,
    warm_up: u64,
}

/// The course after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Constant,
    Cosine { steps: u64 },
    Linear { steps: u64 },
    Steps { every: u64, factor: f64 },
}

impl LearningRate {
    /// A schedule with this highest learning rate; constant if no other shape is chosen.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(3e-4).build()?;
    /// assert_eq!((schedule.at(0), schedule.at(1_000_000)), (3e-4, 3e-4));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(peak: f64) -> LearningRateBuilder {
        LearningRateBuilder(Self {
            peak,
            shape: Shape::Constant,
            floor: 0.,
            warm_up: 0,
        })
    }

    /// The learning rate of a step, counted from 0.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(1.).warm_up(9).cosine(100).build()?;
    /// assert_eq!(schedule.at(0), 0.1); // the first of 9 steps up, which end at 0.9
    /// assert_eq!(schedule.at(9), 1.);
    /// assert_eq!([100, 5000].map(|step| schedule.at(step)), [0., 0.]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn at(&self, step: u64) -> f64 {
        let Some(step) = step.checked_sub(self.warm_up) else {
            return self.peak * (step as f64 + 1.) / (self.warm_up as f64 + 1.);
        };
        // Progress of a decay over this many steps, from 0 to 1.
        let part = |steps: u64| match steps.saturating_sub(self.warm_up) {
            0 => 1.,
            steps => (step as f64 / steps as f64).min(1.),
        };
        let above = self.peak - self.floor;
        let rate = match self.shape {
            Shape::Constant => self.peak,
            Shape::Cosine { steps } => self.floor + above * (1. + (PI * part(steps)).cos()) / 2.,
            Shape::Linear { steps } => self.floor + above * (1. - part(steps)),
            Shape::Steps { every, factor } => {
                let times = i32::try_from(step / every).unwrap_or(i32::MAX);
                self.peak * factor.powi(times)
            }
        };
        rate.max(self.floor)
    }
}

/// Builds a [`LearningRate`]; from [`LearningRate::builder`].
///
/// There is one shape after the warm-up: of [`cosine`](Self::cosine), [`linear`](Self::linear) and [`steps`](Self::steps) the last call counts.
///
/// ```
/// use candle_headroom::LearningRate;
///
/// let schedule = LearningRate::builder(1.).warm_up(4).steps(10, 0.1).build()?;
/// assert_eq!([0, 4, 14].map(|step| schedule.at(step)), [0.2, 1., 0.1]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "call `build()`"]
pub struct LearningRateBuilder(LearningRate);

impl LearningRateBuilder {
    /// Falls along half a cosine (Loshchilov & Hutter 2016, arXiv 1608.03983) and stays at the floor from step `steps` on. The warm-up
    /// is a part of these steps.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(1.).cosine(100).floor(0.1).build()?;
    /// assert!((schedule.at(50) - 0.55).abs() < 1e-12); // half-way
    /// assert_eq!(schedule.at(100), 0.1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn cosine(self, steps: u64) -> Self {
        self.shape(Shape::Cosine { steps })
    }

    /// Falls along a straight line and stays at the floor from step `steps` on. The warm-up is a part of these steps.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(1e-3).linear(100).build()?;
    /// assert_eq!((schedule.at(0), schedule.at(50), schedule.at(200)), (1e-3, 5e-4, 0.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn linear(self, steps: u64) -> Self {
        self.shape(Shape::Linear { steps })
    }

    /// Multiplies the rate by `factor` after every `every` steps, counted from the end of the warm-up.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(1.).steps(100, 0.5).build()?;
    /// assert_eq!([0, 99, 100, 250].map(|step| schedule.at(step)), [1., 1., 0.5, 0.25]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn steps(self, every: u64, factor: f64) -> Self {
        self.shape(Shape::Steps { every, factor })
    }

    /// The lowest rate after the warm-up; 0 by default.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(1.).linear(100).floor(0.25).build()?;
    /// assert_eq!((schedule.at(50), schedule.at(100)), (0.625, 0.25));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn floor(self, floor: f64) -> Self {
        Self(LearningRate { floor, ..self.0 })
    }

    /// Rises along a straight line first: step `s` of `steps` has `(s + 1) / (steps + 1)` of the peak, never 0.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let schedule = LearningRate::builder(1.).warm_up(3).build()?;
    /// assert_eq!([0, 1, 2, 3].map(|step| schedule.at(step)), [0.25, 0.5, 0.75, 1.]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn warm_up(mut self, steps: u64) -> Self {
        self.0.warm_up = steps;
        self
    }

    /// Builds the schedule.
    ///
    /// ```
    /// use candle_headroom::LearningRate;
    ///
    /// let error = LearningRate::builder(1e-3).floor(1e-2).build().unwrap_err();
    /// assert!(error.is_optimizer());
    /// assert_eq!(error.to_string(), "`floor` of LearningRate must be at most the peak, got 0.01");
    /// ```
    ///
    /// # Errors
    /// If a rate or the factor is negative or not finite, the floor is above the peak, or `every` is 0
    /// ([`is_optimizer`](crate::Error::is_optimizer)).
    pub fn build(self) -> Result<LearningRate> {
        let check = |name, value, range: Range| range.check("LearningRate", name, value);
        check("peak", self.0.peak, Range::NOT_NEGATIVE)?;
        check("floor", self.0.floor, Range::NOT_NEGATIVE)?;
        if self.0.floor > self.0.peak {
            return Err(invalid!(
                Optimizer,
                "`floor` of LearningRate must be at most the peak, got {}",
                self.0.floor
            ));
        }
        if let Shape::Steps { every, factor } = self.0.shape {
            check("every", every as f64, Range::POSITIVE)?;
            check("factor", factor, Range::NOT_NEGATIVE)?;
        }
        Ok(self.0)
    }

    fn shape(self, shape: Shape) -> Self {
        Self(LearningRate { shape, ..self.0 })
    }
}
