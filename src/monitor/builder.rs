use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gpu::{self, Gpu};
use super::host::Host;
use super::keeper::{Keeper, Outlets};
use super::record::Record;
use super::sink::{Outlet, Sink};
use super::source::{Look, MachineClock, Source};
use super::watchdog::Threads;
use super::watched::{Ring, Watched};
use super::{Crossing, Monitor, Threshold};
use crate::error::{MonitorError, Result};
use crate::nvml::{Library, NAMES, within};

/// How long the driver may take to list the GPUs: it wakes those that sleep.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a [`Monitor`] is made of; from [`Monitor::builder`].
///
/// ```
/// use std::time::Duration;
/// use candle_headroom::{Monitor, Threshold};
///
/// let monitor = Monitor::builder()
///     .interval(Duration::from_millis(100))
///     .history(36_000) // an hour
///     .threshold(Threshold::held_down(), |crossing| eprintln!("{crossing}"))
///     .start()?;
/// assert!(!monitor.latest().is_empty());
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

impl Default for MonitorBuilder {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            history: 600,
            thresholds: Vec::new(),
            sinks: Vec::new(),
            library: None,
        }
    }
}

impl MonitorBuilder {
    /// The time from one sample to the next; a second without it.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How many samples are kept of each source; 600 without it. They take some 400 bytes each, at once.
    pub fn history(mut self, samples: usize) -> Self {
        self.history = samples;
        self
    }

    /// Calls `ring` when a source passes the threshold, and again when it is good again; several may be given. `tracing` is told
    /// too.
    pub fn threshold(
        mut self,
        threshold: Threshold,
        ring: impl FnMut(&Crossing<'_>) + Send + 'static,
    ) -> Self {
        self.thresholds.push((threshold, Box::new(ring)));
        self
    }

    /// Writes each sample there; several may be given.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Outlet::new(sink));
        self
    }

    /// Where NVML is, if the loader does not find it by its name.
    ///
    /// # Safety
    /// [`start`](Self::start) loads the library and calls it, which must be sound.
    pub unsafe fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().to_owned());
        self
    }

    /// Starts the monitor, and waits for its first sample: 15 seconds at most for the driver to list its GPUs, and 3 for the sample.
    ///
    /// That there is no GPU, or no driver, or that it does not answer, is no error: then the host alone is watched, and
    /// [`Monitor::without_gpus`] says why. A GPU that cannot be reached now, while others can, is left out for good: it has no identity
    /// by which it could be looked for later.
    ///
    /// # Errors
    /// [`MonitorError`].
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
        let mut lookers: Vec<Box<dyn Look>> = Vec::new();
        let library = self.library.clone();
        let asked = within(PATIENCE, move || gpus(library.as_deref()));
        let unanswered = || Err("NVML does not answer".to_owned());
        let (mut sources, without_gpus) = match asked.unwrap_or_else(unanswered) {
            Ok((library, sources)) => {
                let uuids = sources.iter().filter_map(|source| source.uuid.clone());
                for (index, uuid) in uuids.enumerate() {
                    let gpu = Gpu::new(Arc::clone(&library), uuid, index, self.interval);
                    lookers.push(Box::new(gpu));
                }
                (sources, None)
            }
            Err(reason) => (Vec::new(), Some(reason)),
        };
        lookers.push(Box::new(Host::open(self.interval)));
        sources.push(Source {
            name: "host".to_owned(),
            uuid: None,
            cuda: None,
        });
        let watched = self.thresholds.into_iter();
        let outlets = Outlets {
            watched: watched
                .map(|(threshold, ring)| Watched::new(threshold, ring, sources.len()))
                .collect(),
            sinks: self.sinks,
        };
        let clock = MachineClock(Instant::now());
        let record = Record::new(sources, self.history)?;
        let keeper = Arc::new(Keeper::new(record, lookers, clock, self.interval, outlets));
        let threads =
            Threads::start(Arc::clone(&keeper)).map_err(|error| MonitorError::Thread {
                reason: error.to_string(),
            })?;
        Ok(Monitor {
            shared: keeper,
            _threads: threads,
            without_gpus,
        })
    }
}

/// NVML and the GPUs that it lists, or why there are none.
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
