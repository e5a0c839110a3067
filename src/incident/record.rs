use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::exhaustion::{Exhaustion, known};
use super::kind::IncidentKind;
use crate::batch::{Event, EventKind, Plan, Task, TrainingEvent};
use crate::error::{DeviceFault, Error};
use crate::monitor::{Sample, SampleLine, SampleRecord, Source};
use crate::output::first_line;

/// One line of an [`IncidentLog`](super::IncidentLog). Fields that do not apply are left out in the file.
///
/// ```
/// use candle_headroom::incident::{IncidentKind, Incidents};
///
/// let incidents = Incidents::parse(r#"{"taken_unix_ms":0,"step":3,"kind":"grown","text":"…","size":[8,16]}"#);
/// assert_eq!((incidents.list[0].kind, incidents.list[0].size), (IncidentKind::Grown, Some((8, 16))));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// The exhaustion, of `Exhausted` and `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<Exhaustion>,
    /// The fault, of `Fault`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Samples in a micro-batch before and after, of `Retried`, `Grown`, `Shrunk` and `Paced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<(usize, usize)>,
    /// Peak and limit in bytes, of `OverLimit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_limit: Option<(u64, u64)>,
    /// Finished samples that are computed again, of `Restarted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<usize>,
    /// What the policy believed at that time, if it has a model.
    #[serde(default, deserialize_with = "known")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The last samples of the monitor, if the log has one.
    #[serde(default, skip_serializing)]
    pub samples: Vec<SampleRecord>,
}

/// A device fault's status code. Its cause and remedy are in the incident's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fault {
    /// The status code's name, for example `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// The status code's number, for example 700.
    pub code: u32,
}

impl From<&DeviceFault> for Fault {
    fn from(fault: &DeviceFault) -> Self {
        Self {
            name: fault.name.to_string(),
            code: fault.code,
        }
    }
}

impl Incident {
    /// The incident of an event, or `None` if the event belongs to the normal course of training.
    pub(super) fn of(event: &TrainingEvent<'_>) -> Option<Self> {
        let mut incident = match event.kind {
            EventKind::Exhausted(exhausted) => {
                let mut incident = Self::new(IncidentKind::Exhausted, exhausted.to_string());
                incident.exhausted = Some(exhausted.into());
                incident
            }
            EventKind::Happened(event) => Self::happened(event),
            EventKind::BatchFailed(error) => Self::failed(error),
            _ => return None,
        };
        (incident.task, incident.step) = (Some(event.task), event.step + 1);
        incident.plan = event.plan;
        Some(incident)
    }

    fn new(kind: IncidentKind, text: String) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            taken_unix_ms: since.unwrap_or_default().as_millis() as u64,
            process: std::process::id(),
            task: None,
            step: 0,
            kind,
            text,
            exhausted: None,
            fault: None,
            size: None,
            over_limit: None,
            lost: None,
            plan: None,
            samples: Vec::new(),
        }
    }

    fn happened(event: &Event) -> Self {
        let mut incident = Self::new(event.into(), event.to_string());
        match event {
            Event::Grown { from, to } | Event::Shrunk { from, to } | Event::Paced { from, to } => {
                incident.size = Some((*from, *to));
            }
            Event::Retried { samples, to, .. } => incident.size = Some((samples.len(), *to)),
            Event::OverLimit { peak, limit } => incident.over_limit = Some((*peak, *limit)),
            Event::Restarted { lost } => incident.lost = Some(*lost),
        }
        incident
    }

    fn failed(error: &Error) -> Self {
        // With `RUST_BACKTRACE` set, candle's errors contain a whole backtrace.
        let text = first_line(&error.to_string()).to_owned();
        let mut incident = Self::new(IncidentKind::Failed, text);
        match error {
            Error::DeviceFault(fault) => {
                incident.kind = IncidentKind::Fault;
                incident.fault = Some((&**fault).into());
            }
            Error::ResourceExhausted(exhausted) => incident.exhausted = Some((&**exhausted).into()),
            _ => {}
        }
        incident
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
