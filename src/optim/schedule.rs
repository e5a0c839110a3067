use std::f64::consts::PI;

use super::fused::hyper_parameter;
use super::rule::Range;
use crate::error::Result;

/// The learning rate as a function of the step, counted from 0; usable with any optimizer, or alone.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::{AdamW, LearningRate};
/// use candle_nn::Optimizer;
///
/// let w = Var::new(3f32, &Device::Cpu)?;
/// let mut optimizer = AdamW::new_lr(vec![w.clone()], 0.)?;
/// let schedule = LearningRate::cosine(1e-3, 1000)?.floor(1e-5)?.warm_up(100);
/// for step in 0..10 {
///     optimizer.set_learning_rate(schedule.at(step));
///     optimizer.backward_step(&w.sqr()?)?;
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

/// How it goes on after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Constant,
    Cosine { steps: u64 },
    Linear { steps: u64 },
    Steps { every: u64, factor: f64 },
}

impl LearningRate {
    /// Always the same.
    ///
    /// # Errors
    /// [`OptimizerError`](crate::OptimizerError) where it is negative or not finite; so for all of them.
    pub fn constant(learning_rate: f64) -> Result<Self> {
        Self::new(learning_rate, Shape::Constant)
    }

    /// From `peak` down along half a cosine (Loshchilov & Hutter 2016, arXiv 1608.03983) to the floor, which is reached after `steps`
    /// steps, those of the warm-up included, and stays there.
    ///
    /// # Errors
    /// As [`constant`](Self::constant).
    pub fn cosine(peak: f64, steps: u64) -> Result<Self> {
        Self::new(peak, Shape::Cosine { steps })
    }

    /// The same along a straight line.
    ///
    /// # Errors
    /// As [`constant`](Self::constant).
    pub fn linear(peak: f64, steps: u64) -> Result<Self> {
        Self::new(peak, Shape::Linear { steps })
    }

    /// Multiplied by `factor` after every `every` steps, counted from the end of the warm-up.
    ///
    /// # Errors
    /// As [`constant`](Self::constant), and where `every` is 0.
    pub fn steps(learning_rate: f64, every: u64, factor: f64) -> Result<Self> {
        check("the schedule's interval", every as f64, Range::Positive)?;
        check("the schedule's factor", factor, Range::NotNegative)?;
        Self::new(learning_rate, Shape::Steps { every, factor })
    }

    /// Never goes below this after the warm-up; 0 without it.
    ///
    /// # Errors
    /// As [`constant`](Self::constant).
    pub fn floor(self, floor: f64) -> Result<Self> {
        check("the schedule's floor", floor, Range::NotNegative)?;
        Ok(Self { floor, ..self })
    }

    /// Rises along a straight line first: step `s` of `steps` has `(s + 1) / (steps + 1)` of the peak, so that no step is wasted on a
    /// rate of 0.
    pub fn warm_up(self, steps: u64) -> Self {
        Self {
            warm_up: steps,
            ..self
        }
    }

    /// The learning rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let Some(step) = step.checked_sub(self.warm_up) else {
            return self.peak * (step as f64 + 1.) / (self.warm_up as f64 + 1.);
        };
        // How far a decay over this many steps has come, from 0 to 1.
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

    fn new(peak: f64, shape: Shape) -> Result<Self> {
        check("lr", peak, Range::NotNegative)?;
        Ok(Self {
            peak,
            shape,
            floor: 0.,
            warm_up: 0,
        })
    }
}

fn check(name: &'static str, value: f64, range: Range) -> Result<()> {
    hyper_parameter("LearningRate", name, value, range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_end_at_the_floor_and_never_rise() {
        for schedule in [
            LearningRate::cosine(0.1, 50),
            LearningRate::linear(0.1, 50),
            LearningRate::steps(0.1, 7, 0.5),
        ] {
            let schedule = schedule.unwrap().floor(0.001).unwrap().warm_up(10);
            let rates: Vec<f64> = (0..200).map(|step| schedule.at(step)).collect();
            assert!(rates[..11].is_sorted());
            assert!(rates[10..].iter().rev().is_sorted(), "{rates:?}");
            assert_eq!(rates[10], 0.1);
            assert_eq!(rates[199], 0.001);
        }
    }

    #[test]
    fn odd_lengths_do_no_harm() {
        let schedule = LearningRate::cosine(0.1, 0).unwrap();
        assert_eq!((schedule.at(0), schedule.at(u64::MAX)), (0., 0.));
        let late = LearningRate::linear(0.1, 5).unwrap().warm_up(10);
        assert_eq!(late.at(10), 0.);
        let steps = LearningRate::steps(0.1, 1, 0.5).unwrap();
        assert_eq!(steps.at(u64::MAX), 0.);
    }

    #[test]
    fn bad_numbers_are_refused() {
        for bad in [-1., f64::NAN, f64::INFINITY] {
            assert!(LearningRate::constant(bad).is_err());
            assert!(LearningRate::cosine(bad, 1).is_err());
            assert!(LearningRate::steps(0.1, 1, bad).is_err());
            assert!(LearningRate::constant(0.1).unwrap().floor(bad).is_err());
        }
        let error = LearningRate::steps(0.1, 0, 0.5).unwrap_err();
        assert!(error.to_string().contains("interval = 0"), "{error}");
    }
}
