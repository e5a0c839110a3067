use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use parking_lot::Mutex;

use super::{Incident, IncidentKind};
use crate::batch::{Observer, TrainingEvent};
use crate::error::{OutputError, Result};
use crate::monitor::{Monitor, Samples};
use crate::output::LineFile;

/// How many samples of each source are written with an incident.
const SAMPLES: usize = 5;

/// Writes each exhaustion, retry, change of size, restart, fault and failed batch as a line of JSON to a file, with the numbers of
/// [`ResourceExhausted`](crate::ResourceExhausted), the policy's plan and the last samples of a monitor.
///
/// Each line is written by one system call before the work goes on; after a failed batch the log waits until the line is on the
/// disk. If the process is killed within that call, or the machine stops, the file can end in the beginning of a line, which
/// [`Incidents`](super::Incidents) skips and opening the log removes. Failures to write never stop the work: they increment
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
#[derive(Debug, Clone)]
#[must_use = "call `open()`"]
pub struct IncidentLogBuilder {
    path: PathBuf,
    rotate_at: ByteSize,
    samples: Option<Arc<Samples>>,
}

impl IncidentLogBuilder {
    /// Writes the last 5 samples of each of this monitor's sources with every incident.
    pub fn monitor(mut self, monitor: &Monitor) -> Self {
        self.samples = Some(monitor.samples());
        self
    }

    /// Starts a new file before one grows beyond `size`; the one before is kept with `.1` appended to its name. Default: 8 MiB.
    pub fn rotate_at(mut self, size: ByteSize) -> Self {
        self.rotate_at = size;
        self
    }

    /// Opens the file to append to it, or creates it.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(self) -> Result<IncidentLog> {
        let file = LineFile::open(&self.path, String::new(), Some(self.rotate_at.as_u64()));
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
    pub fn builder(path: impl Into<PathBuf>) -> IncidentLogBuilder {
        IncidentLogBuilder {
            path: path.into(),
            rotate_at: ByteSize::mib(8),
            samples: None,
        }
    }

    /// The last failure to write an incident.
    pub fn failure(&self) -> Option<OutputError> {
        self.state.lock().failure.clone()
    }

    /// The number of incidents that could not be written.
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
