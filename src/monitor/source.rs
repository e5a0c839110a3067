use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use super::file_sink::SampleRecord;
use super::sample::{Health, Sample};
use crate::error::MonitorError;

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

/// The sources and their latest samples. Separate from the worker, so that an incident log keeps no sink, listener or driver alive.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(super) sources: Vec<Source>,
    /// For each source, oldest first.
    pub(super) rings: Mutex<Vec<VecDeque<Sample>>>,
    /// The most samples in each ring.
    most: usize,
}

impl Samples {
    pub(super) fn new(sources: Vec<Source>, most: usize) -> Result<Self, MonitorError> {
        let mut rings = vec![VecDeque::new(); sources.len()];
        for ring in &mut rings {
            let reserved = ring.try_reserve_exact(most);
            reserved.map_err(|_| MonitorError::HistoryTooLong(most))?;
        }
        Ok(Self {
            rings: Mutex::new(rings),
            sources,
            most,
        })
    }

    /// Stores a sample without allocating, and logs a change of health.
    pub(super) fn push(&self, source: &Source, sample: &Sample) {
        let mut rings = self.rings.lock();
        let Some(ring) = rings.get_mut(sample.source) else {
            return;
        };
        let before = ring.back().map_or(Health::Good, |last| last.health);
        if ring.len() >= self.most {
            ring.pop_front();
        }
        ring.push_back(*sample);
        // Logged after the lock is released, because a subscriber of `tracing` may use the monitor.
        drop(rings);
        match sample.health {
            health if health == before => {}
            Health::Good => tracing::info!("{source} answers again"),
            health => tracing::warn!("{source}: {health}"),
        }
    }

    /// The last samples of each source, oldest first.
    pub(crate) fn last(&self, count: usize) -> Vec<SampleRecord> {
        let rings = self.rings.lock();
        let pairs = self.sources.iter().zip(rings.iter());
        let last = pairs.flat_map(|(source, ring)| {
            let samples = ring.iter().skip(ring.len().saturating_sub(count));
            samples.flat_map(move |sample| SampleRecord::of(source, sample))
        });
        last.collect()
    }
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
