use std::fmt;
use std::io;
use std::sync::Arc;

use super::output::Output;
use super::record::Samples;
use super::sample::Sample;
use super::source::Source;
use super::worker::Worker;

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
/// let _printing = monitor.subscribe(|source, sample| println!("{source}: {sample}"));
/// // … train …
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Failures
/// The monitor looks for a lost, unplugged or reset GPU every two seconds, by UUID; meanwhile its samples say
/// [`Health::Lost`](super::Health::Lost). If a driver call hangs, the source shows [`Health::Hanging`](super::Health::Hanging) after
/// one to two seconds, and another thread samples the other sources. The hanging thread ends when its call returns. The result of
/// a call that took less than ten seconds becomes the next sample; a later one is discarded.
///
/// # Dropping
/// Dropping a monitor waits for its thread: at most a second while it is in a driver call, and as long as a callback or a sink takes.
pub struct Monitor {
    worker: Arc<Worker>,
    without_gpus: Option<String>,
}

/// Keeps a listener registered, from [`Monitor::subscribe`]; dropping it ends the calls.
#[derive(Debug)]
#[must_use = "dropping it ends the calls"]
pub struct Subscription {
    _token: Arc<()>,
}

impl Monitor {
    pub(super) fn start(worker: Worker, without_gpus: Option<String>) -> io::Result<Self> {
        let worker = Arc::new(worker);
        // Dropping this stops what was started before an error.
        let monitor = Self {
            worker,
            without_gpus,
        };
        monitor.worker.start()?;
        Ok(monitor)
    }

    /// The sampled GPUs, in CUDA's order where it is known, and then the host.
    pub fn sources(&self) -> &[Source] {
        &self.worker.record.sources
    }

    /// Why no GPU is sampled, or `None` if at least one is. A GPU that could not be reached at the start while others could is
    /// missing from [`sources`](Self::sources) and is not reported here.
    pub fn without_gpus(&self) -> Option<&str> {
        self.without_gpus.as_deref()
    }

    /// The latest sample of each source, in the order of [`sources`](Self::sources).
    pub fn latest(&self) -> Vec<Sample> {
        self.worker.record.latest()
    }

    /// The kept samples of the source with this index, oldest first; empty if there is no such source.
    pub fn history(&self, source: usize) -> Vec<Sample> {
        self.worker.record.history(source)
    }

    /// Calls `f` with each sample from the next one on, on the monitor's thread, until the subscription is dropped.
    ///
    /// Nothing is sampled while `f` runs. If `f` panics, it is not called again.
    pub fn subscribe(&self, f: impl FnMut(&Source, &Sample) + Send + 'static) -> Subscription {
        let token = Arc::new(());
        let mut output = Output::callback(f);
        output.subscription = Some(Arc::downgrade(&token));
        self.worker.outputs.add(output);
        Subscription { _token: token }
    }

    /// The number of samples that a sink failed to write, or that a sink or callback did not receive because it panicked.
    pub fn failed_writes(&self) -> u64 {
        self.worker.outputs.failed()
    }

    /// The samples, for other parts of this crate; they may outlive the monitor.
    pub(crate) fn samples(&self) -> Samples {
        Arc::clone(&self.worker.record)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.worker.stop();
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("sources", &self.sources())
            .finish_non_exhaustive()
    }
}
