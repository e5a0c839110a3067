use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::sample::{Health, Sample};
use super::source::Source;
use crate::error::MonitorError;

/// The samples of a monitor, which may have ended.
pub(crate) type Samples = Arc<Record>;

/// The sources and their latest samples. Separate from the worker, so that an incident log keeps no sink, listener or driver alive.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) sources: Vec<Source>,
    /// For each source, oldest first.
    rings: Mutex<Vec<VecDeque<Sample>>>,
    /// The capacity of each ring.
    most: usize,
}

impl Record {
    pub(super) fn new(sources: Vec<Source>, most: usize) -> Result<Self, MonitorError> {
        let ring = |_: &Source| {
            let mut ring = VecDeque::new();
            let reserved = ring.try_reserve_exact(most);
            reserved.map_err(|_| MonitorError::HistoryTooLong(most))?;
            Ok(ring)
        };
        let rings: Result<_, _> = sources.iter().map(ring).collect();
        Ok(Self {
            rings: Mutex::new(rings?),
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

    pub(super) fn latest(&self) -> Vec<Sample> {
        let rings = self.rings.lock();
        let latest = rings.iter().filter_map(|ring| ring.back());
        latest.copied().collect()
    }

    pub(super) fn history(&self, source: usize) -> Vec<Sample> {
        let rings = self.rings.lock();
        rings.get(source).into_iter().flatten().copied().collect()
    }

    /// The last samples of each source, oldest first.
    pub(crate) fn last(&self, count: usize) -> Vec<(Source, Sample)> {
        let rings = self.rings.lock();
        let pairs = self.sources.iter().zip(rings.iter());
        let last = pairs.flat_map(|(source, ring)| {
            let samples = ring.iter().skip(ring.len().saturating_sub(count));
            samples.map(|sample| (source.clone(), *sample))
        });
        last.collect()
    }
}
