use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::callback::Callback;
use super::record::Samples;
use super::sample::Sample;
use super::source::Source;
use super::threads::Threads;

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
///     .threshold(Threshold::memory_share(0.95), |crossing| eprintln!("{crossing}"))
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
    threads: Threads,
    without_gpus: Option<String>,
}

/// Keeps a listener registered, from [`Monitor::subscribe`]; dropping it ends the calls.
#[derive(Debug)]
#[must_use = "dropping it ends the calls"]
pub struct Subscription {
    is_wanted: Arc<AtomicBool>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Release);
    }
}

impl Monitor {
    pub(super) fn new(threads: Threads, without_gpus: Option<String>) -> Self {
        Self {
            threads,
            without_gpus,
        }
    }

    /// The sampled GPUs, in CUDA's order where it is known, and then the host.
    pub fn sources(&self) -> &[Source] {
        &self.threads.worker.record.sources
    }

    /// Why no GPU is sampled, or `None` if at least one is. A GPU that could not be reached at the start while others could is
    /// missing from [`sources`](Self::sources) and is not reported here.
    pub fn without_gpus(&self) -> Option<&str> {
        self.without_gpus.as_deref()
    }

    /// The latest sample of each source, in the order of [`sources`](Self::sources).
    pub fn latest(&self) -> Vec<Sample> {
        self.threads.worker.record.latest()
    }

    /// The kept samples of the source with this index, oldest first; empty if there is no such source.
    pub fn history(&self, source: usize) -> Vec<Sample> {
        self.threads.worker.record.history(source)
    }

    /// Calls `f` with each sample from the next one on, on the monitor's thread, until the subscription is dropped.
    ///
    /// Nothing is sampled while `f` runs. If `f` panics, it is not called again.
    pub fn subscribe(&self, f: impl FnMut(&Source, &Sample) + Send + 'static) -> Subscription {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let mut listeners = self.threads.worker.listeners.lock();
        listeners.push((Arc::clone(&is_wanted), Callback::new(Box::new(f))));
        Subscription { is_wanted }
    }

    /// The number of samples that sinks failed to write. A sink that panicked fails from then on.
    pub fn failed_writes(&self) -> u64 {
        self.threads.worker.failed_writes.load(Ordering::Relaxed)
    }

    /// The samples, for other parts of this crate; they may outlive the monitor.
    pub(crate) fn samples(&self) -> Samples {
        Samples(Arc::clone(&self.threads.worker.record))
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("sources", &self.sources())
            .finish_non_exhaustive()
    }
}
