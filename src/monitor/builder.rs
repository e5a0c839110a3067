use std::path::{Path, PathBuf};
use std::time::Duration;

use super::gpu;
use super::handle::Monitor;
use super::host;
use super::output::{Output, Sink};
use super::record::Record;
use super::source::{Looker, Source};
use super::threshold::{Crossing, Threshold};
use super::worker::Worker;
use crate::error::{MonitorError, Result};
use crate::nvml::{Library, NAMES, within};

/// How long the driver may take to list the GPUs, which wakes those that sleep.
const PATIENCE: Duration = Duration::from_secs(15);

/// Options of a [`Monitor`]; from [`Monitor::builder`].
#[derive(Debug)]
#[must_use = "call `start()`"]
pub struct MonitorBuilder {
    interval: Duration,
    history: usize,
    thresholds: Vec<Threshold>,
    outputs: Vec<Output>,
    library: Option<PathBuf>,
}

impl Monitor {
    /// Options for a monitor; by default one sample a second, with the last 600 kept of each source.
    pub fn builder() -> MonitorBuilder {
        MonitorBuilder {
            interval: Duration::from_secs(1),
            history: 600,
            thresholds: Vec::new(),
            outputs: Vec::new(),
            library: None,
        }
    }
}

impl MonitorBuilder {
    /// Sets the time between two samples. Default: one second.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how many samples are kept of each source. Default: 600. Each takes about 400 bytes, allocated at the start.
    pub fn history(mut self, samples: usize) -> Self {
        self.history = samples;
        self
    }

    /// Calls `ring` when a source crosses the threshold and when it has recovered; both are also logged with `tracing`. Can be called
    /// several times.
    pub fn threshold(
        mut self,
        threshold: Threshold,
        ring: impl FnMut(&Crossing<'_>) + Send + 'static,
    ) -> Self {
        self.thresholds.push(threshold);
        self.outputs.push(Output::callback(threshold.watch(ring)));
        self
    }

    /// Writes each sample to `sink`. Can be called several times.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.outputs.push(Output::sink(sink));
        self
    }

    /// Sets the path of NVML, for machines on which the loader does not find it by name.
    ///
    /// # Safety
    /// The file must be NVML or a compatible library: loading it runs its initialization code in this process, and the monitor calls
    /// its functions with NVML's signatures.
    pub unsafe fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().to_owned());
        self
    }

    /// Starts the monitor and waits for its first sample: at most 15 seconds for the driver to list the GPUs and 3 for the sample.
    ///
    /// Without a GPU or a driver, or if the driver does not answer, the monitor samples the host alone and [`Monitor::without_gpus`]
    /// says why. A GPU that cannot be reached now while others can is left out for good, because its UUID is not known.
    ///
    /// # Errors
    /// [`MonitorError`] if an option is out of range, the history does not fit into memory, or no thread can be started.
    pub fn start(self) -> Result<Monitor> {
        if self.interval.is_zero() {
            return Err(MonitorError::Interval.into());
        }
        if self.history == 0 {
            return Err(MonitorError::History.into());
        }
        if let Some(threshold) = self.thresholds.iter().find(|one| !one.is_possible()) {
            let threshold = threshold.to_string();
            return Err(MonitorError::Threshold(threshold).into());
        }
        let (path, interval) = (self.library, self.interval);
        let opened = within(PATIENCE, move || gpus(path.as_deref(), interval));
        let opened = opened.unwrap_or_else(|| Err("NVML does not answer".to_owned()));
        let (mut opened, without_gpus) = match opened {
            Ok(gpus) => (gpus, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        opened.push(host::open(interval));
        let (sources, lookers): (_, Vec<_>) = opened.into_iter().unzip();
        let record = Record::new(sources, self.history)?;
        let worker = Worker::new(record, lookers, interval, self.outputs);
        Monitor::start(worker, without_gpus).map_err(|error| {
            let reason = error.to_string();
            MonitorError::Thread(reason).into()
        })
    }
}

/// Loads NVML and opens its GPUs, or says why there are none.
fn gpus(
    library: Option<&Path>,
    interval: Duration,
) -> std::result::Result<Vec<(Source, Looker)>, String> {
    let library = match library {
        // SAFETY: the caller of `library` vouches for it.
        Some(path) => unsafe { Library::load(&[path], PATIENCE / 2) },
        // SAFETY: the names are those of NVIDIA's library, which may be loaded at any time.
        None => unsafe { Library::load(&NAMES, PATIENCE / 2) },
    };
    let library = library.map_err(|error| error.to_string())?;
    gpu::open(&library, interval)
}
