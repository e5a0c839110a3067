use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::gpu::{self, Gpu};
use super::handle::Monitor;
use super::host::Host;
use super::record::Record;
use super::sink::{Outlet, Sink};
use super::source::{Look, Source};
use super::threads::Threads;
use super::threshold::{Crossing, Threshold};
use super::watched::{Ring, Watched};
use super::worker::Worker;
use crate::error::{MonitorError, Result};
use crate::nvml::{Library, NAMES, within};

/// How long the driver may take to list the GPUs, which wakes those that sleep.
const PATIENCE: Duration = Duration::from_secs(15);

/// Options of a [`Monitor`]; from [`Monitor::builder`].
///
/// ```
/// use std::time::Duration;
/// use candle_headroom::Monitor;
///
/// // An hour at 10 Hz.
/// let monitor = Monitor::builder().interval(Duration::from_millis(100)).history(36_000).start()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[must_use = "call `start()`"]
pub struct MonitorBuilder {
    interval: Duration,
    history: usize,
    thresholds: Vec<(Threshold, Ring)>,
    sinks: Vec<Outlet>,
    library: Option<PathBuf>,
}

impl Monitor {
    /// Options for a monitor; by default one sample a second, with the last 600 kept of each source.
    pub fn builder() -> MonitorBuilder {
        MonitorBuilder {
            interval: Duration::from_secs(1),
            history: 600,
            thresholds: Vec::new(),
            sinks: Vec::new(),
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
        self.thresholds.push((threshold, Box::new(ring)));
        self
    }

    /// Writes each sample to `sink`. Can be called several times.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Outlet::new(sink));
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
        for (threshold, _) in &self.thresholds {
            threshold.check()?;
        }
        let (mut sources, mut lookers) = (Vec::new(), Vec::<Box<dyn Look>>::new());
        let path = self.library;
        let asked = within(PATIENCE, move || gpus(path.as_deref()));
        let without_gpus = match asked.unwrap_or_else(|| Err("NVML does not answer".to_owned())) {
            Ok((library, gpus)) => {
                let uuids = gpus.iter().filter_map(|gpu| gpu.uuid.clone());
                lookers.extend(uuids.enumerate().map(|(index, uuid)| -> Box<dyn Look> {
                    Box::new(Gpu::new(Arc::clone(&library), uuid, index, self.interval))
                }));
                sources = gpus;
                None
            }
            Err(reason) => Some(reason),
        };
        lookers.push(Box::new(Host::open(self.interval)));
        sources.push(Source::host());
        let watched = |(threshold, ring)| Watched::new(threshold, ring, sources.len());
        let thresholds = self.thresholds.into_iter().map(watched).collect();
        let record = Record::new(sources, self.history)?;
        let worker = Worker::new(record, lookers, self.interval, thresholds, self.sinks);
        let threads = Threads::start(worker).map_err(|error| MonitorError::Thread {
            reason: error.to_string(),
        })?;
        Ok(Monitor::new(threads, without_gpus))
    }
}

/// Loads NVML and lists its GPUs, or says why there are none.
fn gpus(library: Option<&Path>) -> std::result::Result<(Arc<Library>, Vec<Source>), String> {
    let library = match library {
        // SAFETY: the caller of `library` vouches for it.
        Some(path) => unsafe { Library::load(&[path], PATIENCE / 2) },
        // SAFETY: the names are those of NVIDIA's library, which may be loaded at any time.
        None => unsafe { Library::load(&NAMES, PATIENCE / 2) },
    };
    let library = library.map_err(|error| error.to_string())?;
    let sources = gpu::list(&library)?;
    Ok((library, sources))
}

impl fmt::Debug for MonitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MonitorBuilder")
            .field("interval", &self.interval)
            .field("history", &self.history)
            .field("sinks", &self.sinks)
            .finish_non_exhaustive()
    }
}
