//! What was seen: the sources, and the latest samples of each.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Health, Sample, Source};
use crate::error::MonitorError;

/// Apart from the monitor's work, so that whoever keeps it keeps no sink, listener or driver with it.
pub(super) struct Record {
    pub(super) sources: Vec<Source>,
    /// For each source, the oldest first.
    pub(super) rings: Mutex<Vec<VecDeque<Sample>>>,
    most: usize,
}

impl Record {
    pub(super) fn new(sources: Vec<Source>, most: usize) -> Result<Self, MonitorError> {
        let ring = |_: &Source| {
            let mut ring = VecDeque::new();
            match ring.try_reserve_exact(most) {
                Ok(()) => Ok(ring),
                Err(_) => Err(MonitorError::HistoryTooLong { samples: most }),
            }
        };
        let rings: Result<_, _> = sources.iter().map(ring).collect();
        Ok(Self {
            rings: Mutex::new(rings?),
            sources,
            most,
        })
    }

    /// Puts the sample into its ring; the room was reserved, so nothing is allocated. Returns the health of the one before.
    pub(super) fn keep(&self, sample: &Sample) -> Option<Health> {
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
        let latest = rings.iter().filter_map(|ring| ring.back().copied());
        latest.collect()
    }

    pub(super) fn of(&self, source: usize) -> Vec<Sample> {
        let rings = self.rings.lock();
        let ring = rings.get(source);
        ring.map(|ring| ring.iter().copied().collect())
            .unwrap_or_default()
    }
}

/// The samples of a monitor, whether it still runs or not.
#[derive(Clone)]
pub(crate) struct Eye(pub(super) Arc<Record>);

impl Eye {
    /// The last samples of each source with it, the oldest first.
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

impl fmt::Debug for Eye {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Eye").field(&self.0.sources).finish()
    }
}
