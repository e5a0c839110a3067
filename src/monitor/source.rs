use std::fmt;
use std::time::{Duration, SystemTime};

use super::Sample;

/// What is watched: a GPU, or the host.
///
/// ```
/// use candle_headroom::Monitor;
///
/// let monitor = Monitor::builder().start()?;
/// let host = monitor.sources().last().expect("the host is always watched");
/// assert_eq!((host.name.as_str(), host.uuid.as_deref()), ("host", None));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The GPU's name, or `host`.
    pub name: String,
    /// The GPU's identity, which stays the same whatever order it is listed in; `None` for the host.
    pub uuid: Option<String>,
    /// The GPU's number as CUDA counts in this process, and so candle; `None` where the program was built without the feature
    /// `cuda`, or CUDA does not see the GPU (`CUDA_VISIBLE_DEVICES`).
    pub cuda: Option<usize>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda {
            Some(ordinal) => write!(f, "cuda:{ordinal} {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Somebody who can look at a source. One call is one sample; the time it took is the caller's to measure.
pub(super) trait Look: Send {
    /// Fills in what can be seen now, and the health.
    fn look(&mut self, sample: &mut Sample);
}

/// When to ask again for what is asked for once in a `period`, with samples at an interval: half of one early, since no sample comes at
/// its moment exactly, and one that came a little early would have to wait for the next.
pub(super) fn again(at: Duration, period: Duration, interval: Duration) -> Duration {
    at.saturating_add(period.saturating_sub(interval / 2))
}

/// Where the time comes from: two clocks, of which only the first can be trusted to go forward.
pub(super) trait Clock: Send + Sync {
    /// Since the monitor started.
    fn elapsed(&self) -> Duration;
    /// What the machine shows.
    fn wall(&self) -> SystemTime;
}

/// The machine's clocks.
#[derive(Debug)]
pub(super) struct MachineClock(pub(super) std::time::Instant);

impl Clock for MachineClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}
