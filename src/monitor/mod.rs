//! Samples of the GPUs and of the host, taken by a thread of their own while a program works.
//!
//! A [`Monitor`] takes one [`Sample`] of each [`Source`] in each interval, keeps the latest ones, and hands each to [`Sink`]s and
//! [`Threshold`]s. While it runs it never delays the program: a driver call that hangs, a sink that fails or panics, and a GPU that is
//! lost affect the samples alone. A value that is not known is `None`, never 0. Taking a sample, keeping it and writing it to a file
//! allocate nothing.

mod gpu;
mod sample;
mod sinks;
mod source;
mod threshold;
mod worker;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) use sample::unix_milliseconds;
pub use sample::{Health, HeldDown, Sample};
#[cfg(feature = "metrics")]
pub use sinks::MetricsSink;
pub use sinks::{FileSink, FileSinkBuilder, SampleRecord, Sink};
pub use source::Source;
pub use threshold::{Crossing, Threshold};
pub(crate) use worker::Samples;

use crate::batch::{EventKind, Observer, TrainingEvent};
use crate::distributed::Group;
use crate::environment::nvml::{NAMES, installed, within};
use crate::environment::patience::{Trusted, load_first};
use crate::error::{Result, invalid};
use sinks::Output;
use source::Waited;
use worker::Worker;

/// How long the driver may take to list the GPUs, which wakes those that sleep.
const PATIENCE: Duration = Duration::from_secs(15);

/// Samples the GPUs and the host from a thread of its own, which ends when this value is dropped.
///
/// The monitor asks GPUs through NVML, the library behind `nvidia-smi`, and reads host memory from `/proc`. NVML is loaded at run
/// time, so the monitor needs neither the feature `cuda` nor a GPU. A field that a GPU or its driver does not support is `None` in
/// every [`Sample`] and is not asked for again.
///
/// ```
/// use std::time::Duration;
/// use candle_headroom::Monitor;
/// use candle_headroom::monitor::Threshold;
///
/// let monitor = Monitor::builder()
///     .interval(Duration::from_millis(20))
///     .threshold(Threshold::MemoryShare(0.95), |crossing| eprintln!("{crossing}"))
///     .start()?;
/// assert_eq!(monitor.latest().len(), monitor.sources().len());
/// // … train …
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # One stream of events
/// A monitor is an [`Observer`], as a [`Timeline`](crate::Timeline) and an [`IncidentLog`](crate::incident::IncidentLog) are: given to
/// trainers, in an [`Arc`], it shows in [`Sample::data_wait`] how much of the time they wait for data.
///
/// ```
/// use std::sync::Arc;
/// use candle_headroom::Monitor;
/// use candle_headroom::batch::{BatchProcessor, Fixed};
///
/// let monitor = Arc::new(Monitor::builder().start()?);
/// let processor = BatchProcessor::builder(Fixed::new(4)?).observer(Arc::clone(&monitor)).build();
/// let host = monitor.latest().pop().expect("the host's sample");
/// assert_eq!(host.data_wait, None); // until the first batch of a loader
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Failures
/// The monitor looks for a lost, unplugged or reset GPU every two seconds, by UUID; meanwhile its samples say
/// [`Health::Lost`]. If a driver call hangs, the source shows [`Health::Hanging`] after
/// one to two seconds, and another thread samples the other sources. The hanging thread ends when its call returns. The result of
/// a call that took less than ten seconds becomes the next sample; a later one is discarded.
///
/// # Dropping
/// Dropping a monitor waits for its thread: at most a second while it is in a driver call, and as long as a callback or a sink takes.
pub struct Monitor {
    worker: Arc<Worker>,
    without_gpus: Option<String>,
    waited: Waited,
}

/// Options of a [`Monitor`]; from [`Monitor::builder`].
///
/// ```
/// use std::time::Duration;
///
/// use candle_headroom::Monitor;
///
/// let monitor = Monitor::builder().interval(Duration::from_millis(20)).history(100).start()?;
/// assert_eq!(monitor.latest().len(), monitor.sources().len());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `start()`"]
pub struct MonitorBuilder {
    interval: Duration,
    history: usize,
    rank: Option<usize>,
    thresholds: Vec<Threshold>,
    outputs: Vec<Output>,
    /// Where NVML is looked for.
    libraries: Vec<Trusted>,
}

impl Monitor {
    /// Options for a monitor; by default one sample a second, with the last 600 kept of each source.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().start()?;
    /// for (source, sample) in monitor.sources().iter().zip(monitor.latest()) {
    ///     println!("{source}: {sample}");
    /// }
    /// assert!(!monitor.latest().is_empty()); // the host at least
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder() -> MonitorBuilder {
        MonitorBuilder {
            interval: Duration::from_secs(1),
            history: 600,
            rank: None,
            thresholds: Vec::new(),
            outputs: Vec::new(),
            libraries: installed(),
        }
    }

    /// The sampled GPUs, in CUDA's order where it is known, and then the host.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().start()?;
    /// let host = monitor.sources().last().expect("the host");
    /// assert_eq!((host.name.as_str(), host.cuda), ("host", None));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn sources(&self) -> &[Source] {
        &self.worker.samples.sources
    }

    /// Why no GPU is sampled, or `None` if at least one is. A GPU that could not be reached at the start while others could is
    /// missing from [`sources`](Self::sources) and is not reported here.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().start()?;
    /// if let Some(reason) = monitor.without_gpus() {
    ///     println!("only the host is sampled: {reason}");
    /// }
    /// assert_eq!(monitor.without_gpus().is_some(), monitor.sources().len() == 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn without_gpus(&self) -> Option<&str> {
        self.without_gpus.as_deref()
    }

    /// The latest sample of each source, in the order of [`sources`](Self::sources).
    ///
    /// ```
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().start()?;
    /// let latest = monitor.latest();
    /// let host = latest.last().expect("the host's");
    /// assert!(host.used <= host.total); // in bytes; `None` where `/proc` is missing
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn latest(&self) -> Vec<Sample> {
        let rings = self.worker.samples.rings.lock();
        let latest = rings.iter().filter_map(|ring| ring.back());
        latest.copied().collect()
    }

    /// The kept samples of the source with this index, oldest first; empty if there is no such source.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().interval(Duration::from_millis(20)).history(100).start()?;
    /// let host = monitor.sources().len() - 1; // the last source
    /// for sample in monitor.history(host) {
    ///     println!("{:?}: {sample}", sample.at);
    /// }
    /// assert!(!monitor.history(host).is_empty());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn history(&self, source: usize) -> Vec<Sample> {
        let rings = self.worker.samples.rings.lock();
        rings.get(source).into_iter().flatten().copied().collect()
    }

    /// The number of samples that a sink failed to write, or that a sink or callback did not receive because it panicked.
    ///
    /// ```
    /// use std::io;
    ///
    /// use candle_headroom::Monitor;
    /// use candle_headroom::monitor::{Sample, Source};
    ///
    /// let full = |_: &Source, _: &Sample| -> io::Result<()> { Err(io::ErrorKind::StorageFull.into()) };
    /// let monitor = Monitor::builder().sink(full).start()?;
    /// assert!(monitor.failed_writes() >= 1); // the first sample, for which `start` waited
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn failed_writes(&self) -> u64 {
        self.worker.failed_writes.load(Ordering::Relaxed)
    }

    /// The samples, for other parts of this crate; they may outlive the monitor.
    pub(crate) fn samples(&self) -> Arc<Samples> {
        Arc::clone(&self.worker.samples)
    }
}

impl MonitorBuilder {
    /// Sets the time between two samples, above 0. Default: one second.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::Monitor;
    ///
    /// let interval = Duration::from_millis(20);
    /// let monitor = Monitor::builder().interval(interval).start()?;
    /// while monitor.history(0).len() < 2 {
    ///     std::thread::sleep(interval);
    /// }
    /// let samples = monitor.history(0);
    /// assert!(samples[0].at < samples[1].at);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how many samples are kept of each source, at least 1. Default: 600. Each takes about 400 bytes, allocated at the start.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().interval(Duration::from_millis(20)).history(3).start()?;
    /// std::thread::sleep(Duration::from_millis(200));
    /// assert!(monitor.history(0).len() <= 3); // the latest ones
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn history(mut self, samples: usize) -> Self {
        self.history = samples;
        self
    }

    /// Marks the sources with this process's rank, so that files, metrics and incidents of all ranks can be put together. It changes nothing
    /// in a group of one. Each rank needs files of its own, and on one machine the ranks sample the same GPUs: one monitor on each machine,
    /// where [`local_rank`](Group::local_rank) is 0, may be enough.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let monitor = Monitor::builder().group(&group).start()?;
    /// assert_eq!(monitor.sources()[0].rank.is_some(), group.size() > 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "distributed")]
    pub fn group(mut self, group: &Group) -> Self {
        self.rank = group.rank_of_several();
        self
    }

    /// Calls `ring`, on the monitor's thread, when a source crosses the threshold and when it has recovered; both are logged too. Can be
    /// called several times.
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use candle_headroom::monitor::Threshold;
    /// use candle_headroom::{ByteSize, Monitor};
    ///
    /// let (alarm, alarms) = mpsc::channel();
    /// let less = Threshold::MemoryFree(ByteSize::pib(2)); // on any machine
    /// let monitor = Monitor::builder()
    ///     .threshold(less, move |crossing| {
    ///         let _ = alarm.send(crossing.to_string()); // nobody may be listening
    ///     })
    ///     .start()?;
    /// assert!(alarms.try_iter().any(|text| text == "host: less than 2.0 PiB of memory left"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn threshold(
        mut self,
        threshold: Threshold,
        ring: impl FnMut(&Crossing<'_>) + Send + 'static,
    ) -> Self {
        self.thresholds.push(threshold);
        self.outputs.push(Output::new(threshold.watch(ring)));
        self
    }

    /// Writes each sample to `sink`, which may be a closure, on the monitor's thread. Can be called several times.
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use candle_headroom::Monitor;
    /// use candle_headroom::monitor::{Sample, Source};
    ///
    /// let (send, samples) = mpsc::channel();
    /// let monitor = Monitor::builder()
    ///     .sink(move |source: &Source, sample: &Sample| {
    ///         send.send((source.name.clone(), *sample)).map_err(std::io::Error::other)
    ///     })
    ///     .start()?;
    /// assert!(samples.try_iter().any(|(source, _)| source == "host"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.outputs.push(Output::new(sink));
        self
    }

    /// Sets the path of NVML, for machines on which the loader does not find it by name.
    ///
    /// ```
    /// use candle_headroom::Monitor;
    ///
    /// // SAFETY: it is the NVML of NVIDIA's driver, if there is such a file.
    /// let builder = unsafe { Monitor::builder().library("/opt/nvidia/lib64/libnvidia-ml.so.1") };
    /// let monitor = builder.start()?;
    /// assert_eq!(monitor.without_gpus().is_some(), monitor.sources().len() == 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Safety
    /// The file must be NVML or a compatible library: loading it runs its initialization code in this process, and the monitor calls
    /// its functions with NVML's signatures.
    #[allow(unsafe_code, reason = "names a library to run")]
    pub unsafe fn library(mut self, path: impl AsRef<Path>) -> Self {
        // SAFETY: the caller's promise.
        self.libraries = vec![unsafe { Trusted::new(path.as_ref()) }];
        self
    }

    /// Starts the monitor and waits for its first sample: at most 15 seconds for the driver to list the GPUs and 3 for the sample.
    ///
    /// Without a GPU or a driver, or if the driver does not answer, the monitor samples the host alone and [`Monitor::without_gpus`]
    /// says why. A GPU that cannot be reached now while others can is left out for good, because its UUID is not known.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::Monitor;
    ///
    /// let monitor = Monitor::builder().start()?;
    /// assert_eq!(monitor.latest().len(), monitor.sources().len());
    ///
    /// let error = Monitor::builder().interval(Duration::ZERO).start().unwrap_err();
    /// assert!(error.is_monitor());
    /// assert_eq!(error.to_string(), "`interval` must be above 0, got 0");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an option is out of range, the history does not fit into memory, or no thread can be started
    /// ([`is_monitor`](crate::Error::is_monitor)).
    pub fn start(self) -> Result<Monitor> {
        if self.interval.is_zero() {
            return Err(invalid!(Monitor, "`interval` must be above 0, got 0"));
        }
        if self.history == 0 {
            return Err(invalid!(
                Monitor,
                "`history` must be at least 1 sample, got 0"
            ));
        }
        if let Some(threshold) = self.thresholds.iter().find(|one| !one.is_possible()) {
            return Err(invalid!(
                Monitor,
                "`threshold` is out of range, got {threshold}: shares must be in (0, 1], other values above 0"
            ));
        }
        let (libraries, interval) = (self.libraries, self.interval);
        let opened = within(PATIENCE, move || {
            let loaded = load_first(&libraries, NAMES[0], PATIENCE / 2);
            let (library, _) = loaded.map_err(|error| error.to_string())?;
            gpu::open(&library, interval)
        });
        let opened = opened.unwrap_or_else(|| Err("NVML does not answer".to_owned()));
        let without_gpus = opened.as_ref().err().cloned();
        let mut opened = opened.unwrap_or_default();
        let waited = Waited::default();
        opened.push(source::host(interval, Arc::clone(&waited)));
        opened
            .iter_mut()
            .for_each(|(source, _)| source.rank = self.rank);
        let (sources, lookers): (_, Vec<_>) = opened.into_iter().unzip();
        let samples = Samples::new(sources, self.history)?;
        let worker = Arc::new(Worker::new(samples, lookers, interval, self.outputs));
        // Dropping the monitor stops what was started before an error.
        let monitor = Monitor {
            worker,
            without_gpus,
            waited,
        };
        let started = monitor.worker.start();
        started.map_err(|error| invalid!(Monitor, "cannot start the monitor's thread: {error}"))?;
        Ok(monitor)
    }
}

impl Observer for Monitor {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if let EventKind::BatchBegan {
            waited: Some(waited),
            ..
        } = event.kind
        {
            let mut all = self.waited.lock();
            *all = Some(all.unwrap_or_default().saturating_add(waited));
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.worker.stop();
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Monitor").field(&self.sources()).finish()
    }
}
