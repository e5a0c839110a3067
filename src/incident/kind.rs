use std::fmt;

use serde::{Deserialize, Serialize};

use crate::batch::Event;

/// What an incident is. Files and `{}` have it in snake case, as in `over_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IncidentKind {
    /// Memory ran out.
    Exhausted,
    /// The samples of a failed micro-batch were computed again.
    Retried,
    /// Micro-batches became larger.
    Grown,
    /// Micro-batches became smaller without a failure.
    Shrunk,
    /// The size of micro-batches changed for speed.
    Paced,
    /// A batch was begun again, because its accumulated gradients were lost.
    Restarted,
    /// The update went over a soft limit.
    OverLimit,
    /// A batch ended with an error.
    Failed,
    /// A batch ended because the device was lost.
    Fault,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

impl From<&Event> for IncidentKind {
    fn from(event: &Event) -> Self {
        match event {
            Event::Grown { .. } => Self::Grown,
            Event::Shrunk { .. } => Self::Shrunk,
            Event::Paced { .. } => Self::Paced,
            Event::Retried { .. } => Self::Retried,
            Event::OverLimit { .. } => Self::OverLimit,
            Event::Restarted { .. } => Self::Restarted,
        }
    }
}

impl fmt::Display for IncidentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
