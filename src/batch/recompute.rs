use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a trainer recomputes the regions that a model marks with [`nn::recompute`](crate::nn::recompute()).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// Regions are kept, like other layers.
    Never,
    /// Regions are recomputed.
    Always,
    /// Regions are kept, and recomputed only if one sample does not fit otherwise.
    ///
    /// [`Predictive`](crate::Predictive) predicts that where the free memory is known, and keeps regions again once there is
    /// more of it, or to try that again after many micro-batches. With other policies, and where memory is not measured, regions
    /// are kept until the smallest micro-batch fails, and recomputed from then on.
    ///
    /// Where recomputation lets much larger micro-batches fit, [`Always`](Self::Always) may be faster.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recomputing {
    /// Whether they are recomputed.
    pub is_on: bool,
    /// Why.
    pub reason: RecomputeReason,
}

/// Why a policy recomputes marked regions, or keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecomputeReason {
    /// The trainer was built with [`Recompute::Always`] or [`Recompute::Never`].
    Asked,
    /// One sample fits without.
    NoNeed,
    /// One sample does not fit otherwise.
    OneSample,
}

impl fmt::Display for Recomputing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_on {
            true => "regions recomputed: ",
            false => "regions kept: ",
        })?;
        f.write_str(match self.reason {
            RecomputeReason::Asked => "as asked",
            RecomputeReason::NoNeed => "one sample fits without",
            RecomputeReason::OneSample => "one sample does not fit otherwise",
        })
    }
}
