use std::fmt;
use std::ops::Range;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::error::{Cause, Phase};

/// A change of the micro-batch size, a retry, a check, or data that begin elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The policy chose a larger size.
    #[non_exhaustive]
    Grown {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// The policy chose a smaller size without a failure: less room, or a micro-batch over a soft limit, whose work was kept.
    #[non_exhaustive]
    Shrunk {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// Marked [regions](crate::nn::recompute()) are recomputed from now on.
    #[non_exhaustive]
    Recomputing {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// Marked regions are kept from now on.
    #[non_exhaustive]
    Keeping {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from now on.
        to: usize,
    },
    /// A micro-batch did not fit, and its samples are computed again.
    #[non_exhaustive]
    Retried {
        /// The samples that failed, as positions in the batch.
        samples: Range<usize>,
        /// The size of the next attempt; the same size if the cause may have passed.
        to: usize,
        /// The phase that failed.
        phase: Option<Phase>,
        /// Why it failed.
        cause: Cause,
    },
    /// The update ran out of memory without a change, and is tried once more.
    #[non_exhaustive]
    UpdateRetried {
        /// Why it failed.
        cause: Cause,
    },
    /// The update, which no micro-batch size affects, went over a soft limit.
    #[non_exhaustive]
    OverLimit {
        /// The highest use during the update, in bytes.
        peak: u64,
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The accumulated gradients were lost, so the batch was started again.
    #[non_exhaustive]
    Restarted {
        /// Number of finished samples that are computed again.
        lost: usize,
    },
    /// After a trainer's state was loaded, a loader with [`accept_changed_data`](crate::data::LoaderBuilder::accept_changed_data) began elsewhere
    /// than the saved run stopped: samples come again, or are left out.
    #[non_exhaustive]
    ContinuedElsewhere {
        /// The loader.
        loader: String,
        /// The place of the saved run's next batch; `None` if that run had not read a loader of this name.
        saved: Option<String>,
        /// Where the loader stood before its first batch.
        found: String,
    },
    /// The closure was checked at the end of the first batch that was cut.
    CutChecked(CutCheck),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grown { from, to } => write!(f, "micro-batch {from} → {to}: more room"),
            Self::Shrunk { from, to } => write!(f, "micro-batch {from} → {to}: less room"),
            Self::Recomputing { from, to } => {
                write!(f, "micro-batch {from} → {to}: regions are recomputed")
            }
            Self::Keeping { from, to } => write!(f, "micro-batch {from} → {to}: regions are kept"),
            Self::Retried {
                samples,
                to,
                phase,
                cause,
            } => {
                let phase = phase.map_or(String::new(), |phase| format!(" in {phase}"));
                let from = samples.len();
                write!(
                    f,
                    "micro-batch {from} → {to}: out of memory{phase}, {cause}"
                )
            }
            Self::UpdateRetried { cause } => write!(f, "update retried: out of memory, {cause}"),
            Self::OverLimit { peak, limit } => {
                let (peak, limit) = (ByteSize(*peak), ByteSize(*limit));
                write!(f, "the update used {peak} with a limit of {limit}")
            }
            Self::Restarted { lost } => write!(f, "batch restarted: {lost} finished samples lost"),
            Self::ContinuedElsewhere {
                loader,
                saved,
                found,
            } => {
                write!(f, "loader `{loader}` begins at {found}, and the saved run ")?;
                match saved {
                    Some(saved) => write!(f, "stopped before {saved}"),
                    None => f.write_str("had not read it"),
                }
            }
            Self::CutChecked(check) => check.fmt(f),
        }
    }
}

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
