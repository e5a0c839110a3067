use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::batch::{Event, Origin, Place};
use crate::error::{DataError, Result};

/// Where loaders have to continue after a trainer's state was loaded, until the first batch of each has come.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// The saved places, by the loaders' names, and whether a loader has gone there.
    starts: Mutex<BTreeMap<String, (Place, bool)>>,
    /// The loaders whose first batch has come; `None` if no state was loaded.
    seen: Option<BTreeSet<String>>,
}

impl Awaited {
    /// Awaits loaders at these places, and all others at their beginning.
    pub(super) fn restore<'a>(&mut self, places: impl Iterator<Item = (&'a String, Place)>) {
        let starts = places.map(|(loader, at)| (loader.clone(), (at, false)));
        *self.starts.get_mut() = starts.collect();
        self.seen = Some(BTreeSet::new());
    }

    /// The loaders that no loader has continued yet.
    pub(super) fn unclaimed(&self) -> Vec<String> {
        let starts = self.starts.lock();
        let unclaimed = starts.iter().filter(|(_, (_, is_claimed))| !is_claimed);
        unclaimed.map(|(loader, _)| loader.clone()).collect()
    }

    pub(super) fn claim(&self, loader: &str, at: Place) {
        if let Some(start) = self.starts.lock().get_mut(loader) {
            *start = (at, true);
        }
    }

    /// Refuses a batch whose loaders do not continue where the saved run stopped. Returns an event for each that may begin elsewhere, and does.
    pub(super) fn check(&mut self, origins: &[Origin<'_>]) -> Result<Vec<Event>> {
        let mut unclaimed = self.unclaimed();
        let Some(seen) = &mut self.seen else {
            return Ok(Vec::new());
        };
        unclaimed.retain(|name| !origins.iter().any(|origin| origin.loader == name));
        let starts = self.starts.get_mut();
        let mut elsewhere = Vec::new();
        for origin in origins {
            let (loader, begin) = (origin.loader.to_owned(), origin.begin);
            let saved = starts.get(&loader).map(|(at, _)| *at);
            let is_right = match saved {
                Some(at) => at == begin,
                None if seen.contains(&loader) => true,
                None => unclaimed.is_empty() && begin == Place::default(),
            };
            if is_right {
                continue;
            }
            if origin.accepts_changes {
                elsewhere.push(Event::ContinuedElsewhere {
                    loader,
                    saved: saved.map(|at| at.to_string()),
                    found: begin.to_string(),
                });
                continue;
            }
            let error = match saved {
                None if !unclaimed.is_empty() => DataError::renamed(&loader, unclaimed),
                saved => DataError::NotResumed {
                    loader,
                    saved: saved.unwrap_or_default().to_string(),
                    found: begin.to_string(),
                },
            };
            return Err(error.into());
        }
        for origin in origins {
            starts.remove(origin.loader);
            seen.insert(origin.loader.to_owned());
        }
        Ok(elsewhere)
    }
}
