//! What went wrong in a run, as lines of JSON.
//!
//! An [`IncidentLog`] observes trainers and processors. It writes an [`Incident`] for each event that is not the normal course of training,
//! before the work goes on, so what led to a crash is in the file. The log never stops the work: what cannot be written is counted.
//! [`Incidents`] reads a file back, including one that ends in the middle of a line, and sums it up. Files of other versions stay readable:
//! kinds that a version does not know become [`IncidentKind::Other`].

mod summary;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use bytesize::ByteSize;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use summary::{IncidentSummary, Incidents};

use crate::batch::{Event, EventKind, Observer, Plan, Task, TrainingEvent};
use crate::error::{OutputError, ResourceExhausted, Result, known};
use crate::monitor::{Monitor, SampleRecord, Samples, unix_milliseconds};
use crate::output::{LineFile, public_line};

/// One line of an [`IncidentLog`]. Fields that do not apply are left out in the file.
///
/// ```
/// use candle_headroom::incident::{Incident, IncidentKind};
///
/// let line = r#"{"taken_unix_ms": 1795392000000, "step": 4, "kind": "grown", "text": "8 samples, then 16"}"#;
/// let incident: Incident = serde_json::from_str(line).unwrap();
/// assert_eq!((incident.step, incident.kind), (4, IncidentKind::Grown));
/// assert!(incident.exhausted.is_none());
/// ```
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
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// use candle_headroom::incident::Incident;
    ///
    /// let line = r#"{"taken_unix_ms": 2500, "step": 4, "kind": "failed", "text": "a shape does not match"}"#;
    /// let incident: Incident = serde_json::from_str(line).unwrap();
    /// assert_eq!(incident.taken(), UNIX_EPOCH + Duration::from_millis(2500));
    /// ```
    pub fn taken(&self) -> SystemTime {
        let since = Duration::from_millis(self.taken_unix_ms);
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    }
}

/// What an incident is. Files and `{}` have it in snake case, as in `over_limit`.
///
/// ```
/// use candle_headroom::incident::IncidentKind;
///
/// assert_eq!(IncidentKind::OverLimit.to_string(), "over_limit");
/// ```
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

/// How many samples of each source are written with an incident.
const SAMPLES: usize = 5;

/// Writes each exhaustion, retry, change of size, restart, fault and failed batch as a line of JSON to a file, with the numbers of
/// [`ResourceExhausted`], the policy's plan and the last samples of a monitor.
///
/// Each line is written by one system call before the work goes on; after a failed batch the log waits until the line is on the
/// disk. If the process is killed within that call, or the machine stops, the file can end in the beginning of a line, which
/// [`Incidents`] skips and opening the log removes. Failures to write never stop the work: they increment
/// [`lost`](Self::lost), and the first is logged with `tracing`. Clones share one file.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Event, Halving};
/// use candle_headroom::incident::{IncidentLog, Incidents};
/// use candle_headroom::testing;
///
/// # let path = std::env::temp_dir().join(format!("incidents-{}.jsonl", std::process::id()));
/// let log = IncidentLog::builder(&path).open()?;
/// let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
/// let mut processor = BatchProcessor::builder(Halving::default()).observer(log.clone()).build();
/// processor.process(&x, |chunk, _| match chunk.dim(0)? {
///     0..=4 => Ok(()),
///     _ => Err(testing::out_of_memory()), // room for 4
/// })?;
/// let incidents = Incidents::read(&path)?;
/// assert!(matches!(incidents.list[1].event, Some(Event::Retried { to: 4, .. })));
/// println!("{}", incidents.summary()); // 1 exhaustion, in forward, at 14:02 UTC
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct IncidentLog {
    options: IncidentLogBuilder,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    file: LineFile,
    failure: Option<OutputError>,
    lost: u64,
}

/// Options of an [`IncidentLog`]; from [`IncidentLog::builder`].
///
/// ```
/// use candle_headroom::ByteSize;
/// use candle_headroom::incident::{IncidentLog, Incidents};
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let path = temporary.path().join("incidents.jsonl");
/// let log = IncidentLog::builder(&path).rotate_at(ByteSize::mib(1)).open()?;
/// // … train, with `.observer(log.clone())` …
/// assert!(Incidents::read(&path)?.list.is_empty()); // nothing went wrong
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `open()`"]
pub struct IncidentLogBuilder {
    path: PathBuf,
    rotate_at: ByteSize,
    samples: Option<Arc<Samples>>,
}

impl IncidentLogBuilder {
    /// Writes the last 5 samples of each of this monitor's sources with every incident.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::batch::{BatchProcessor, Halving};
    /// # use candle_headroom::testing;
    /// use candle_headroom::Monitor;
    /// use candle_headroom::incident::{IncidentLog, Incidents};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("incidents.jsonl");
    /// let monitor = Monitor::builder().start()?;
    /// let log = IncidentLog::builder(&path).monitor(&monitor).open()?;
    /// # let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
    /// # let mut processor = BatchProcessor::builder(Halving::default()).observer(log.clone()).build();
    /// # processor.process(&x, |chunk, _| match chunk.dim(0)? {
    /// #     0..=4 => Ok(()),
    /// #     _ => Err(testing::out_of_memory()),
    /// # })?;
    /// // … memory runs out in a trainer with `.observer(log.clone())` …
    /// let incidents = Incidents::read(&path)?;
    /// let last = incidents.list[0].samples.last().expect("a sample");
    /// assert_eq!(last.source, "host"); // after those of GPUs
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn monitor(mut self, monitor: &Monitor) -> Self {
        self.samples = Some(monitor.samples());
        self
    }

    /// Starts a new file before one grows beyond `size`; the one before is kept with `.1` appended to its name. Default: 8 MiB.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::batch::{BatchProcessor, Halving};
    /// # use candle_headroom::testing;
    /// use candle_headroom::ByteSize;
    /// use candle_headroom::incident::{IncidentLog, Incidents};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("incidents.jsonl");
    /// let log = IncidentLog::builder(&path).rotate_at(ByteSize::b(1)).open()?;
    /// # let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
    /// # let mut processor = BatchProcessor::builder(Halving::default()).observer(log.clone()).build();
    /// # processor.process(&x, |chunk, _| match chunk.dim(0)? {
    /// #     0..=4 => Ok(()),
    /// #     _ => Err(testing::out_of_memory()),
    /// # })?;
    /// // … two or more incidents, each of which fills a file …
    /// assert!(path.with_extension("jsonl.1").exists());
    /// assert_eq!(Incidents::read(&path)?.list.len(), 2); // the last two are kept
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn rotate_at(mut self, size: ByteSize) -> Self {
        self.rotate_at = size;
        self
    }

    /// Opens the file to append to it, or creates it.
    ///
    /// ```
    /// use candle_headroom::Error;
    /// use candle_headroom::incident::IncidentLog;
    ///
    /// let error = IncidentLog::builder("/no/such/folder/incidents.jsonl").open().unwrap_err();
    /// assert!(matches!(error, Error::Output(error) if error.target.ends_with("incidents.jsonl")));
    /// ```
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(self) -> Result<IncidentLog> {
        let file = LineFile::open(&self.path, Some(self.rotate_at.as_u64()));
        let state = State {
            file: file.map_err(|error| OutputError::at(&self.path, &error))?,
            failure: None,
            lost: 0,
        };
        Ok(IncidentLog {
            options: self,
            state: Arc::new(Mutex::new(state)),
        })
    }
}

impl IncidentLog {
    /// Options for a log in the file at `path`.
    ///
    /// ```
    /// use candle_headroom::incident::IncidentLog;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let path = temporary.path().join("incidents.jsonl");
    /// let log = IncidentLog::builder(&path).open()?;
    /// assert!(path.exists());
    /// // … train, with `.observer(log.clone())` …
    /// assert_eq!(log.lost(), 0);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(path: impl Into<PathBuf>) -> IncidentLogBuilder {
        IncidentLogBuilder {
            path: path.into(),
            rotate_at: ByteSize::mib(8),
            samples: None,
        }
    }

    /// The last failure to write an incident; `None` if all were written.
    ///
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::batch::{BatchProcessor, Halving};
    /// # use candle_headroom::testing;
    /// use candle_headroom::incident::IncidentLog;
    ///
    /// let log = IncidentLog::builder("/dev/full").open()?; // a disk without room
    /// # let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
    /// # let mut processor = BatchProcessor::builder(Halving::default()).observer(log.clone()).build();
    /// # processor.process(&x, |chunk, _| match chunk.dim(0)? {
    /// #     0..=4 => Ok(()),
    /// #     _ => Err(testing::out_of_memory()),
    /// # })?;
    /// // … memory runs out in a trainer with `.observer(log.clone())` …
    /// let failure = log.failure().expect("nothing could be written");
    /// assert_eq!((failure.target.as_str(), failure.kind), ("/dev/full", ErrorKind::StorageFull));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn failure(&self) -> Option<OutputError> {
        self.state.lock().failure.clone()
    }

    /// The number of incidents that could not be written.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::batch::{BatchProcessor, Halving};
    /// # use candle_headroom::testing;
    /// use candle_headroom::incident::IncidentLog;
    ///
    /// let log = IncidentLog::builder("/dev/full").open()?; // a disk without room
    /// # let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
    /// # let mut processor = BatchProcessor::builder(Halving::default()).observer(log.clone()).build();
    /// # processor.process(&x, |chunk, _| match chunk.dim(0)? {
    /// #     0..=4 => Ok(()),
    /// #     _ => Err(testing::out_of_memory()),
    /// # })?;
    /// // … memory runs out in a trainer with `.observer(log.clone())`, and a retry succeeds …
    /// assert!(log.lost() >= 2);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn lost(&self) -> u64 {
        self.state.lock().lost
    }
}

impl Observer for IncidentLog {
    fn observe(&self, event: &TrainingEvent<'_>) {
        let Some(mut incident) = Incident::of(event) else {
            return;
        };
        if let Some(samples) = &self.options.samples {
            incident.samples = samples.last(SAMPLES);
        }
        let mut state = self.state.lock();
        let Err(error) = state.write(&incident) else {
            return;
        };
        let error = OutputError::at(&self.options.path, &error);
        state.lost += 1;
        let is_first = state.failure.replace(error.clone()).is_none();
        // A subscriber of `tracing` may use this log.
        drop(state);
        if is_first {
            tracing::warn!(%error, "incidents cannot be written");
        }
    }
}

impl State {
    fn write(&mut self, incident: &Incident) -> io::Result<()> {
        let mut line = serde_json::to_vec(incident)?;
        line.push(b'\n');
        self.file.append(&line)?;
        match incident.kind {
            // The process may end after these.
            IncidentKind::Failed | IncidentKind::Fault => self.file.sync(),
            _ => Ok(()),
        }
    }
}
