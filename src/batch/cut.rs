use std::fmt;

use serde::{Deserialize, Serialize};

/// What was checked of a closure's loss, and what was found: [`AdaptiveTrainer::check_cut`](crate::AdaptiveTrainer::check_cut).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CutCheck {
    /// Number of samples that were computed together, and in two parts.
    pub samples: usize,
    /// What was found.
    pub finding: CutFinding,
}

/// The result of a [`CutCheck`]. A loss that depends on the cut is an error instead:
/// [`LossError::DependsOnCut`](crate::error::LossError::DependsOnCut).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CutFinding {
    /// The gradient of all samples is that of the two parts.
    Agrees,
    /// The gradients differ, and the closure changes buffers, as BatchNorm in training does: it normalizes by the samples of a micro-batch,
    /// so its result depends on the cut in every framework.
    ChangesBuffers,
    /// The loss of the same samples differs from call to call: the closure draws random numbers, so nothing could be checked. This
    /// crate's dropout does not count, because it is off in a check.
    Random,
    /// Nothing could be checked, for this reason.
    Undecided(String),
}

impl CutCheck {
    pub(crate) fn new(samples: usize, finding: CutFinding) -> Self {
        Self { samples, finding }
    }

    /// Whether the training differs from that of whole batches.
    pub(crate) fn is_warning(&self) -> bool {
        self.finding == CutFinding::ChangesBuffers
    }
}

impl fmt::Display for CutCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = self.samples;
        let depends = match &self.finding {
            CutFinding::Agrees => "the loss does not depend on the cut",
            CutFinding::ChangesBuffers => {
                "the loss depends on the cut, and buffers change, as with BatchNorm"
            }
            CutFinding::Random => {
                "the loss of the same samples differs from call to call, so that it is not known whether it depends on the cut"
            }
            CutFinding::Undecided(reason) => {
                return write!(f, "not known whether the loss depends on the cut: {reason}");
            }
        };
        write!(f, "{depends}, checked on {samples} samples")
    }
}
