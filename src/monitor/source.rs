use std::fmt;
use std::time::Duration;

use super::sample::Sample;

/// A GPU, or the host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The GPU's name, or `host`.
    pub name: String,
    /// The GPU's UUID; `None` for the host.
    pub uuid: Option<String>,
    /// The GPU's CUDA ordinal, which candle uses. `None` without the feature `cuda` and where `CUDA_VISIBLE_DEVICES` hides the GPU.
    pub cuda: Option<usize>,
    /// The rank that samples it; see [`MonitorBuilder::group`](super::MonitorBuilder::group).
    pub rank: Option<usize>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda {
            Some(ordinal) => write!(f, "cuda:{ordinal} {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Samples one source: fills in the values and the health.
pub(super) type Looker = Box<dyn FnMut(&mut Sample) + Send>;

/// Whether something that is done with the first sample, and then once in each period, is to be done with the sample at this time.
/// Half an interval early: samples do not come at exact times, and one that came a little early would have to wait for the next.
pub(super) fn is_due(
    next: &mut Duration,
    at: Duration,
    period: Duration,
    interval: Duration,
) -> bool {
    let is_due = at >= *next;
    if is_due {
        *next = at.saturating_add(period.saturating_sub(interval / 2));
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_comes_a_little_early_is_not_missed() {
        let half_a_second = Duration::from_millis(500);
        let mut next = Duration::ZERO;
        let mut is_due = |microseconds| {
            let at = Duration::from_micros(microseconds);
            is_due(&mut next, at, half_a_second, half_a_second)
        };
        assert!([0, 500_300, 1_000_100, 1_500_200, 2_000_000].map(&mut is_due) == [true; 5]);
        assert!(!is_due(2_100_000), "too often");
    }
}
