use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::desk::Desk;
use super::gpu::{self, Gpu};
use super::host::Host;
use super::keeper::{Keeper, Seat, Shared};
use super::sink::{Outlet, Sink};
use super::source::{MachineClock, Source};
use super::threshold::{Crossing, Ring, Watched};
use super::{Monitor, Threshold};
use crate::error::{MonitorError, Result};

/// How long starting waits for the first sample: a driver that was not used for a while takes seconds to wake up.
const FIRST: Duration = Duration::from_secs(5);

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
    library: Option<OsString>,
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
    pub fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().as_os_str().to_owned());
        self
    }

    /// Starts the monitor, and waits for its first sample, 5 seconds at most.
    ///
    /// That there is no GPU, or no driver, is no error: then the host alone is watched, and
    /// [`Monitor::without_gpus`] says why.
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
        let refused = |error: std::io::Error| MonitorError::Thread {
            reason: error.to_string(),
        };
        let (mut sources, without_gpus) = match gpu::list(self.library.as_ref()) {
            Ok(sources) => (sources, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let mut seats = Vec::new();
        for uuid in sources.iter().filter_map(|source| source.uuid.clone()) {
            let desk = Desk::open(Gpu::new(self.library.clone(), uuid));
            seats.push(Seat::There(desk.map_err(refused)?));
        }
        seats.push(Seat::Here(Box::new(Host::open())));
        sources.push(Source {
            name: "host".to_owned(),
            uuid: None,
            cuda: None,
        });
        let count = sources.len();
        let watched = self.thresholds.into_iter();
        let shared = Arc::new(Shared::new(sources, self.history));
        let keeper = Keeper {
            shared: Arc::clone(&shared),
            clock: Box::new(MachineClock(Instant::now())),
            interval: self.interval,
            seats,
            watched: watched
                .map(|(threshold, ring)| Watched::new(threshold, ring, count))
                .collect(),
            sinks: self.sinks,
        };
        let thread = thread::Builder::new().name("headroom-monitor".to_owned());
        let thread = thread.spawn(move || keeper.run()).map_err(refused)?;
        shared.wait_for_round(1, FIRST);
        Ok(Monitor {
            shared,
            thread: Some(thread),
            without_gpus,
        })
    }
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
