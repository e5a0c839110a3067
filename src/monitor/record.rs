use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::sample::{Health, Sample};
use super::source::Source;
use crate::error::MonitorError;

/// The sources and their latest samples. Separate from the worker, so that a holder of samples keeps no sink, listener or driver alive.
pub(super) struct Record {
    pub(super) sources: Vec<Source>,
    /// For each source, oldest first.
    rings: Mutex<Vec<VecDeque<Sample>>>,
    most: usize,
}

impl Record {
    pub(super) fn new(sources: Vec<Source>, most: usize) -> Result<Self, MonitorError> {
        let ring = |_: &Source| {
            let mut ring = VecDeque::new();
            let reserved = ring.try_reserve_exact(most);
            reserved.map_err(|_| MonitorError::HistoryTooLong { samples: most })?;
            Ok(ring)
        };
        let rings: Result<_, _> = sources.iter().map(ring).collect();
        Ok(Self {
            rings: Mutex::new(rings?),
            sources,
            most,
        })
    }

    /// Stores a sample without allocating and returns the health of the one before.
    pub(super) fn push(&self, sample: &Sample) -> Option<Health> {
        let mut rings = self.rings.lock();
        let ring = rings.get_mut(sample.source)?;
        let before = ring.back().map(|last| last.health);
        if ring.len() >= self.most {
            ring.pop_front();
        }
        ring.push_back(*sample);
        before
    }

    pub(super) fn latest(&self) -> Vec<Sample> {
        let rings = self.rings.lock();
        rings
            .iter()
            .filter_map(|ring| ring.back().copied())
            .collect()
    }

    pub(super) fn history(&self, source: usize) -> Vec<Sample> {
        let rings = self.rings.lock();
        rings.get(source).into_iter().flatten().copied().collect()
    }
}

/// The samples of a monitor, which may have ended.
#[derive(Clone)]
pub(crate) struct Samples(pub(super) Arc<Record>);

impl Samples {
    /// The last samples of each source, oldest first.
    pub(crate) fn last(&self, count: usize) -> Vec<(Source, Sample)> {
        let rings = self.0.rings.lock();
        let pairs = self.0.sources.iter().zip(rings.iter());
        let last = pairs.flat_map(|(source, ring)| {
            let samples = ring.iter().skip(ring.len().saturating_sub(count));
            samples.map(|sample| (source.clone(), *sample))
        });
        last.collect()
    }
}

impl fmt::Debug for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Samples").field(&self.0.sources).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_full_ring_does_not_grow() {
        let record = Record::new(vec![Source::host()], 600).unwrap();
        let capacity = record.rings.lock()[0].capacity();
        for second in 0..86_400 {
            record.push(&Sample::blank(0, UNIX_EPOCH, Duration::from_secs(second)));
        }
        let history = record.history(0);
        assert_eq!(history.len(), 600);
        assert_eq!(history[599].at, Duration::from_secs(86_399));
        assert_eq!(record.rings.lock()[0].capacity(), capacity);
    }
}
