//! What went wrong in a run, as lines of JSON.

mod log;
mod summary;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use log::{IncidentLog, IncidentLogBuilder};
pub use summary::{IncidentSummary, Incidents};

use crate::batch::{Event, EventKind, Plan, Task, TrainingEvent};
use crate::error::{ResourceExhausted, known};
use crate::monitor::{SampleRecord, unix_milliseconds};
use crate::output::public_line;

/// One line of an [`IncidentLog`]. Fields that do not apply are left out in the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Incident {
    /// When it happened by the machine's clock, in milliseconds since 1970.
    pub taken_unix_ms: u64,
    /// The number of the process.
    #[serde(default)]
    pub process: u32,
    /// The rank, if several train together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// What the batch was for. Each task counts its own steps.
    #[serde(default, deserialize_with = "known")]
    pub task: Option<Task>,
    /// In which step, counted from 1.
    pub step: u64,
    /// What happened.
    pub kind: IncidentKind,
    /// What happened, for people. The wording may change between versions. Of addresses only scheme, host and path are written, because
    /// the rest may hold credentials.
    pub text: String,
    /// The exhaustion, of `Exhausted` and `Failed`. Only the first line of its source is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<ResourceExhausted>,
    /// The number of the driver's status code, of `Fault`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<u32>,
    /// The change of size, retry, restart or update over the limit.
    #[serde(default, deserialize_with = "known")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// What the policy believed at that time, if it has a model.
    #[serde(default, deserialize_with = "known")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The last samples of the monitor, if the log has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<SampleRecord>,
}

impl Incident {
    /// The incident of an event, or `None` if the event belongs to the normal course of training.
    pub(crate) fn of(event: &TrainingEvent<'_>) -> Option<Self> {
        use IncidentKind::{Exhausted, Failed, Fault};
        let (mut exhausted, mut fault, mut change) = (None, None, None);
        let (kind, text) = match event.kind {
            EventKind::Exhausted(error) => {
                exhausted = Some(error);
                (Exhausted, error.to_string())
            }
            EventKind::Happened(Event::CutChecked(check)) if !check.is_warning() => return None,
            EventKind::Happened(event) => {
                change = Some(event);
                (event.into(), event.to_string())
            }
            EventKind::BatchFailed(error) => {
                (exhausted, fault) = (error.resource_exhausted(), error.device_fault());
                let kind = if fault.is_some() { Fault } else { Failed };
                // With `RUST_BACKTRACE` set, candle's errors contain a whole backtrace.
                (kind, public_line(&error.to_string()).into_owned())
            }
            _ => return None,
        };
        Some(Self {
            taken_unix_ms: unix_milliseconds(SystemTime::now()),
            process: std::process::id(),
            rank: event.rank,
            task: Some(event.task),
            step: event.step + 1,
            kind,
            text,
            exhausted: exhausted.cloned(),
            fault: fault.map(|fault| fault.code),
            event: change.cloned(),
            plan: event.plan,
            samples: Vec::new(),
        })
    }

    /// When it happened, by the machine's clock.
    pub fn taken(&self) -> SystemTime {
        let since = Duration::from_millis(self.taken_unix_ms);
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    }
}

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
    /// Marked regions are recomputed from now on.
    Recomputing,
    /// Marked regions are kept from now on.
    Keeping,
    /// A batch was begun again, because its accumulated gradients were lost.
    Restarted,
    /// The update went over a soft limit.
    OverLimit,
    /// A check found that the loss depends on how a batch is cut, and that buffers change, as with BatchNorm.
    CutChecked,
    /// After a resume a loader began elsewhere than the saved run stopped.
    ContinuedElsewhere,
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
            Event::Recomputing { .. } => Self::Recomputing,
            Event::Keeping { .. } => Self::Keeping,
            Event::Retried { .. } | Event::UpdateRetried { .. } => Self::Retried,
            Event::OverLimit { .. } => Self::OverLimit,
            Event::Restarted { .. } => Self::Restarted,
            Event::ContinuedElsewhere { .. } => Self::ContinuedElsewhere,
            Event::CutChecked(_) => Self::CutChecked,
        }
    }
}

impl fmt::Display for IncidentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
