use super::policy::{Options, Predictive};
use crate::error::{PolicyError, Result};

/// Part of the room that is left free by default, and at most.
const MARGIN: f64 = 0.01;
const MOST_MARGIN: f64 = 0.9;

/// Options of [`Predictive`].
///
/// ```
/// use candle_headroom::Predictive;
///
/// let policy = Predictive::builder().margin(0.02).at_most(64).build()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictiveBuilder(Options);

impl Predictive {
    /// Options for a policy that has learned nothing yet: a margin of 1 % of the room and no bound on the size.
    pub fn builder() -> PredictiveBuilder {
        PredictiveBuilder(Options {
            margin: MARGIN,
            most: usize::MAX,
            minds_speed: true,
        })
    }

    /// The policy with default options.
    pub fn new() -> Self {
        Self::with(Self::builder().0)
    }
}

impl PredictiveBuilder {
    /// Sets the part of the room to leave free, from 0 to 0.9. More is left free where the model is less certain than
    /// that.
    pub fn margin(mut self, margin: f64) -> Self {
        self.0.margin = margin;
        self
    }

    /// Sets the largest size, in samples. It is used as it is, with a smaller rest at the end of the batch.
    pub fn at_most(mut self, size: usize) -> Self {
        self.0.most = size;
        self
    }

    /// Uses the largest size that fits even if a smaller one is as fast, so that sizes depend on memory alone.
    pub fn regardless_of_speed(mut self) -> Self {
        self.0.minds_speed = false;
        self
    }

    /// Creates the policy.
    ///
    /// # Errors
    /// [`PolicyError::Margin`] for a margin outside 0 to 0.9, [`PolicyError::Zero`] for a largest size of 0.
    pub fn build(self) -> Result<Predictive> {
        if !(0. ..=MOST_MARGIN).contains(&self.0.margin) {
            let margin = self.0.margin.to_string();
            return Err(PolicyError::Margin { margin }.into());
        }
        if self.0.most == 0 {
            let what = "the largest size of a micro-batch";
            return Err(PolicyError::Zero { what }.into());
        }
        Ok(Predictive::with(self.0))
    }
}

impl Default for Predictive {
    fn default() -> Self {
        Self::new()
    }
}
