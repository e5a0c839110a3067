use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::kind::IncidentKind;
use crate::batch::{Event, EventKind, Plan, Task, TrainingEvent};
use crate::error::{Error, ResourceExhausted, known};
use crate::monitor::{Sample, SampleLine, SampleRecord, Source};
use crate::output::first_line;

/// One line of an [`IncidentLog`](super::IncidentLog). Fields that do not apply are left out in the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Incident {
    /// When it happened by the machine's clock, in milliseconds since 1970.
    pub taken_unix_ms: u64,
    /// The number of the process.
    #[serde(default)]
    pub process: u32,
    /// What the batch was for. Each task counts its own steps.
    #[serde(default, deserialize_with = "known")]
    pub task: Option<Task>,
    /// In which step, counted from 1.
    pub step: u64,
    /// What happened.
    pub kind: IncidentKind,
    /// What happened, for people. The wording may change between versions.
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
    #[serde(default, skip_serializing)]
    pub samples: Vec<SampleRecord>,
}

impl Incident {
    /// The incident of an event, or `None` if the event belongs to the normal course of training.
    pub(super) fn of(event: &TrainingEvent<'_>) -> Option<Self> {
        let (kind, text) = match event.kind {
            EventKind::Exhausted(error) => (IncidentKind::Exhausted, error.to_string()),
            EventKind::Happened(event) => (event.into(), event.to_string()),
            EventKind::BatchFailed(Error::DeviceFault(fault)) => {
                (IncidentKind::Fault, fault.to_string())
            }
            // With `RUST_BACKTRACE` set, candle's errors contain a whole backtrace.
            EventKind::BatchFailed(error) => (
                IncidentKind::Failed,
                first_line(&error.to_string()).to_owned(),
            ),
            _ => return None,
        };
        let (exhausted, fault) = match event.kind {
            EventKind::Exhausted(exhausted) => (Some(exhausted), None),
            EventKind::BatchFailed(error) => (error.resource_exhausted(), error.device_fault()),
            _ => (None, None),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Some(Self {
            taken_unix_ms: since.unwrap_or_default().as_millis() as u64,
            process: std::process::id(),
            task: Some(event.task),
            step: event.step + 1,
            kind,
            text,
            exhausted: exhausted.cloned(),
            fault: fault.map(|fault| fault.code),
            event: match event.kind {
                EventKind::Happened(event) => Some(event.clone()),
                _ => None,
            },
            plan: event.plan,
            samples: Vec::new(),
        })
    }

    /// When it happened, by the machine's clock.
    pub fn taken(&self) -> SystemTime {
        let since = Duration::from_millis(self.taken_unix_ms);
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    }

    /// The incident as a line of JSON, with samples of a monitor.
    pub(super) fn line(&self, samples: &[(Source, Sample)]) -> io::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            incident: &'a Incident,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            samples: Vec<SampleLine<'a>>,
        }
        let samples = samples.iter();
        let samples = samples.map(|(source, sample)| SampleLine(source, sample));
        let mut line = serde_json::to_vec(&Line {
            incident: self,
            samples: samples.collect(),
        })?;
        line.push(b'\n');
        Ok(line)
    }
}
