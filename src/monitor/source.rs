use std::fmt;
use std::time::Duration;

use super::sample::Sample;

/// A GPU, or the host.
///
/// ```
/// use candle_headroom::Monitor;
///
/// let monitor = Monitor::builder().start()?;
/// let host = monitor.sources().last().expect("the host is always sampled");
/// assert_eq!((host.name.as_str(), host.uuid.as_deref()), ("host", None));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The GPU's name, or `host`.
    pub name: String,
    /// The GPU's UUID; `None` for the host.
    pub uuid: Option<String>,
    /// The GPU's CUDA ordinal in this process, which candle uses too. `None` in programs built without the feature `cuda`, and for
    /// GPUs that CUDA does not see (`CUDA_VISIBLE_DEVICES`).
    pub cuda: Option<usize>,
}

impl Source {
    pub(super) fn host() -> Self {
        Self {
            name: "host".to_owned(),
            uuid: None,
            cuda: None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda {
            Some(ordinal) => write!(f, "cuda:{ordinal} {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Samples one source.
pub(super) trait Look: Send {
    /// Fills in the values and the health.
    fn look(&mut self, sample: &mut Sample);
}

/// When to ask again for a value that is asked for once in a `period`, given samples at an interval. Half an interval early: samples
/// do not come at exact times, and one that came a little early would have to wait for the next.
pub(super) fn again(at: Duration, period: Duration, interval: Duration) -> Duration {
    at.saturating_add(period.saturating_sub(interval / 2))
}
