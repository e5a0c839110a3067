//! What the GPU is doing, and the host: watched from a thread of its own.

mod builder;
mod gpu;
mod held_down;
mod host;
mod keeper;
mod record;
mod sample;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod threshold;
mod watchdog;
mod watched;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use builder::MonitorBuilder;
pub use held_down::HeldDown;
pub(crate) use record::Eye;
pub use sample::{Health, Sample};
#[cfg(feature = "metrics")]
pub use sink::MetricsSink;
pub(crate) use sink::write_object;
pub use sink::{CsvSink, JsonLinesSink, Sink};
pub use source::Source;
pub use threshold::{Crossing, Threshold};

use keeper::Keeper;
use watchdog::Threads;

/// Watches the GPUs and the host from a thread of its own, which ends when this value is dropped.
///
/// GPUs are asked through NVML, the library that `nvidia-smi` uses; it is loaded at run time, so a program needs neither the feature
/// `cuda` nor a GPU to be built or started with a monitor. Host memory is read from `/proc`. A field that a GPU or its driver does not
/// have is `None` in each [`Sample`] and is not asked for again.
///
/// ```
/// use std::time::Duration;
/// use candle_headroom::{Monitor, Threshold};
///
/// let monitor = Monitor::builder()
///     .interval(Duration::from_millis(20))
///     .threshold(Threshold::memory_share(0.95), |crossing| eprintln!("{crossing}"))
///     .start()?;
/// for (source, sample) in monitor.sources().iter().zip(monitor.latest()) {
///     println!("{source}: {sample}");
/// }
/// let _printing = monitor.subscribe(|source, sample| println!("{source}: {sample}"));
/// // … train …
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Trouble
/// A GPU that was lost, unplugged or reset is looked for again every two seconds by its UUID; its samples say [`Health::Lost`] meanwhile.
/// A call that does not come back, which happens when a driver is in trouble, shows as [`Health::Hanging`] after one to two seconds, and the
/// others are sampled on by another thread; the one that hangs cannot be ended from outside and ends when its call returns, if ever. What a
/// call saw that was only late is the next sample, if it took less than ten seconds. Samples are taken on a grid by a clock that only goes
/// forward: whoever sets the machine's clock changes [`Sample::taken`] alone.
///
/// # The end
/// Dropping a monitor waits for its thread: a second at most where that is in a call to the driver. Callbacks and sinks run there too, and
/// are waited for however long they take: one that blocks keeps the thread from sampling, and whoever drops the monitor waiting.
pub struct Monitor {
    shared: Arc<Keeper>,
    /// Ended and waited for with the monitor.
    _threads: Threads,
    without_gpus: Option<String>,
}

/// A listener's place; dropping it ends the calls.
///
/// ```
/// use candle_headroom::Monitor;
///
/// let monitor = Monitor::builder().start()?;
/// let subscription = monitor.subscribe(|_, sample| println!("{sample}"));
/// drop(subscription);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
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
    /// A monitor to be set up: at one sample a second, with the last 600 kept of each source.
    pub fn builder() -> MonitorBuilder {
        MonitorBuilder::default()
    }

    /// What is watched: the GPUs in CUDA's order, as far as that is known, and last the host.
    pub fn sources(&self) -> &[Source] {
        &self.shared.record.sources
    }

    /// Why no GPU is watched, where none is. That one of several could not be reached when the monitor started is not told here: it is
    /// missing from the [`sources`](Self::sources).
    pub fn without_gpus(&self) -> Option<&str> {
        self.without_gpus.as_deref()
    }

    /// The latest sample of each source, in the order of [`sources`](Self::sources).
    pub fn latest(&self) -> Vec<Sample> {
        self.shared.record.latest()
    }

    /// The samples that are kept of a source, the oldest first; none where there is no such source.
    pub fn history(&self, source: usize) -> Vec<Sample> {
        self.shared.record.of(source)
    }

    /// Calls `f` with each sample from the next one on, on the monitor's thread, as long as the subscription lives.
    ///
    /// While it runs nothing else is sampled. If it panics it is not called again.
    pub fn subscribe(&self, f: impl FnMut(&Source, &Sample) + Send + 'static) -> Subscription {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let mut listeners = self.shared.listeners.lock();
        listeners.push((Arc::clone(&is_wanted), Some(Box::new(f))));
        Subscription { is_wanted }
    }

    /// Samples that a sink could not write. One that panicked writes none any more.
    pub fn failed_writes(&self) -> u64 {
        self.shared.failed_writes.load(Ordering::Relaxed)
    }

    /// Its samples for others of this crate, which may outlive it.
    pub(crate) fn eye(&self) -> Eye {
        Eye(Arc::clone(&self.shared.record))
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("sources", &self.shared.record.sources)
            .finish_non_exhaustive()
    }
}
