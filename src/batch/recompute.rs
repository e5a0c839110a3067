use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a trainer recomputes the regions that a model marks with [`nn::recompute`](crate::nn::recompute()).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// Regions are kept, like other layers.
    Never,
    /// Regions are recomputed.
    Always,
    /// Regions are kept while that is faster. They are recomputed if one sample does not fit otherwise, or if that lets
    /// through more samples a second, because larger micro-batches fit.
    ///
    /// [`Predictive`](crate::Predictive) measures both where the room is known, but not with the option
    /// [`regardless_of_speed`](super::PredictiveBuilder::regardless_of_speed). With other policies, and where memory is not
    /// measured, regions are kept until the smallest micro-batch fails, and recomputed from then on.
    #[default]
    Auto,
}

/// What became of a micro-batch's marked regions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Regions {
    /// None has been seen.
    #[default]
    None,
    /// They were kept.
    Kept,
    /// They were recomputed in the backward pass.
    Recomputed,
}

/// Whether a policy recomputes marked regions, and why.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recomputing {
    /// Whether they are recomputed.
    pub is_on: bool,
    /// Why.
    pub reason: RecomputeReason,
    /// Samples a second with recomputation, divided by those without; `None` before both were timed.
    pub speed: Option<f64>,
}

/// Why a policy recomputes marked regions, or keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecomputeReason {
    /// The trainer was built with [`Recompute::Always`] or [`Recompute::Never`].
    Asked,
    /// The whole batch fits without, or nothing shows yet that larger micro-batches would be faster.
    NoNeed,
    /// Both are being timed, in turn from batch to batch.
    Timing,
    /// One sample does not fit otherwise.
    OneSample,
    /// It lets through more samples a second than the other.
    Faster,
}

impl fmt::Display for Recomputing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_on {
            true => "regions recomputed: ",
            false => "regions kept: ",
        })?;
        f.write_str(match self.reason {
            RecomputeReason::Asked => "as asked",
            RecomputeReason::NoNeed => "no need of larger micro-batches",
            RecomputeReason::Timing => "being timed",
            RecomputeReason::OneSample => "one sample does not fit otherwise",
            RecomputeReason::Faster => "faster",
        })?;
        match self.speed {
            Some(speed) => write!(f, " (recomputed {speed:.2} x as fast as kept)"),
            None => Ok(()),
        }
    }
}
