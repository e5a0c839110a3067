//! What went wrong, kept for later.

mod read;
mod record;
mod summary;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytesize::ByteSize;
use parking_lot::Mutex;

pub use read::{Incident, Incidents};
pub use summary::IncidentSummary;

use crate::batch::{Observer, TrainingEvent};
use crate::error::{OutputError, Result};
use crate::monitor::{Eye, Monitor};
use crate::output::LineFile;
use record::Record;

/// A file grows to this before it is put aside as `.1`, so that both take twice as much at most.
const MOST: ByteSize = ByteSize(8 << 20);
/// So many samples of each source go with an incident.
const SAMPLES: usize = 5;

/// A file of all that went wrong or was adapted to: each exhaustion, retry, change of size, fault and failed step as a line of JSON,
/// with everything that [`ResourceExhausted`](crate::ResourceExhausted) knows and the last samples of a monitor.
///
/// Each line is written at once, so it is there even if the process ends next. The file is bounded: beyond 8 MiB it is put
/// aside under the same name with `.1` at its end, in the place of the one before. What cannot be written never stops the work:
/// `tracing` is told once, and [`failure`](Self::failure) and [`lost`](Self::lost) say so. Handles are cheap to clone and share one file.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::{testing, BatchProcessor, Halving, IncidentLog, Incidents};
///
/// # let path = std::env::temp_dir().join(format!("incidents-{}.jsonl", std::process::id()));
/// let log = IncidentLog::open(&path)?;
/// let x = Tensor::arange(0f32, 8., &Device::Cpu)?;
/// let mut processor = BatchProcessor::new(Halving::from_whole_batch()).observer(log.clone());
/// processor.process(&x, |chunk, _| match chunk.dim(0)? {
///     0..=4 => Ok(()),
///     _ => Err(testing::out_of_memory()), // room for 4
/// })?;
///
/// let incidents = Incidents::read(&path)?;
/// assert_eq!(incidents.list[0].text, "out of device memory in forward of a micro-batch of 8 (samples 0..8): \
///     the cause is not known; a micro-batch of 4");
/// println!("{}", incidents.summary()); // 1 exhaustion, in forward, at 14:02 UTC
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct IncidentLog {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    file: LineFile,
    eye: Option<Eye>,
    failure: Option<OutputError>,
    lost: u64,
}

impl IncidentLog {
    /// Opens or creates the file; one that is there already is gone on with.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), MOST)
    }

    /// The same with another bound than 8 MiB for a file; the one before is kept as `.1`.
    ///
    /// # Errors
    /// [`OutputError`] with the path.
    pub fn bounded(path: impl AsRef<Path>, most: ByteSize) -> Result<Self> {
        Self::with(path.as_ref(), most)
    }

    fn with(path: &Path, most: ByteSize) -> Result<Self> {
        let file = LineFile::open(path, Some(most.as_u64()));
        let inner = Inner {
            file: file.map_err(|error| OutputError::at(path, &error))?,
            eye: None,
            failure: None,
            lost: 0,
        };
        Ok(Self {
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    /// Puts the last 5 samples of each of this monitor's sources into every incident from here on.
    pub fn monitor(self, monitor: &Monitor) -> Self {
        self.inner.lock().eye = Some(monitor.eye());
        self
    }

    /// What kept an incident from being written, the last time that one was.
    pub fn failure(&self) -> Option<OutputError> {
        self.inner.lock().failure.clone()
    }

    /// How many incidents could not be written.
    pub fn lost(&self) -> u64 {
        self.inner.lock().lost
    }
}

impl Observer for IncidentLog {
    fn observe(&self, moment: &TrainingEvent<'_>) {
        if let Some(record) = Record::of(moment, SystemTime::now()) {
            self.inner.lock().write(record);
        }
    }
}

impl Inner {
    fn write(&mut self, record: Record) {
        let samples = self.eye.as_ref().map(|eye| eye.last(SAMPLES));
        let is_last_words = record.ends_the_work;
        let mut line = record.line(&samples.unwrap_or_default());
        line.push('\n');
        let mut written = self.file.append(line.as_bytes());
        if is_last_words {
            // What follows may be the end of more than the process.
            written = written.and_then(|()| self.file.sync());
        }
        if let Err(error) = written {
            self.lost += 1;
            if self.failure.is_none() {
                tracing::warn!(%error, file = %self.file.path().display(), "incidents cannot be written");
            }
            self.failure = Some(OutputError::at(self.file.path(), &error));
        }
    }
}
