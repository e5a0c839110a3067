use std::collections::VecDeque;

use parking_lot::Mutex;

use super::file_sink::SampleRecord;
use super::sample::{Health, Sample};
use super::source::Source;
use crate::error::MonitorError;

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
