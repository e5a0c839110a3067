//! How far updates have read loaders, as it is saved. A batch counts once an update has consumed it, so a resumed run reads again what was
//! accumulated, and a loader that stands elsewhere is refused.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::ranks::Data;
use crate::batch::{Division, Event, Origin, Place, Position};
use crate::error::{DataError, Result};

/// How far loaders have been read, by their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Positions {
    /// After the last batch that an update consumed.
    consumed: BTreeMap<String, Position>,
    /// After batches that were accumulated since.
    #[serde(skip)]
    pending: Batches,
    /// After the batch in progress.
    #[serde(skip)]
    current: Batches,
}

/// The batches of an update that is still to come.
#[derive(Debug, Clone, Default, PartialEq)]
struct Batches {
    /// The loaders' positions after them, in order.
    positions: Vec<(String, Position)>,
    /// Which they are, for other ranks.
    data: Data,
}

impl Positions {
    /// A batch begins, whose parts come from here.
    pub(super) fn begin(&mut self, origins: &[Origin<'_>]) {
        self.current = Batches::default();
        for (place, origin) in origins.iter().enumerate() {
            let (loader, position) = (origin.loader, origin.position);
            let mut before = origins.iter().take(place);
            if before.any(|other| other.loader == loader && other.position != position) {
                tracing::warn!(
                    loader,
                    "two loaders of a batch have one name: only the last can be resumed, name them apart"
                );
            }
            let after = (loader.to_owned(), position.clone());
            self.current.positions.push(after);
            self.current.data.push(origin);
        }
    }

    /// The batch in progress was accumulated, or it was rolled back. It makes no difference if an update has consumed it.
    pub(super) fn end(&mut self, is_accumulated: bool) {
        let Batches { positions, data } = std::mem::take(&mut self.current);
        if is_accumulated {
            self.pending.positions.extend(positions);
            self.pending.data.extend(data);
        }
    }

    /// What was accumulated is lost.
    pub(super) fn drop_pending(&mut self) {
        self.pending = Batches::default();
    }

    /// The batches of the next update.
    pub(super) fn data(&self) -> Data {
        let mut data = self.pending.data.clone();
        data.extend(self.current.data.clone());
        data
    }

    /// An update consumed what was accumulated, and the batch in progress.
    pub(super) fn consume(&mut self) {
        self.end(true);
        for (loader, position) in std::mem::take(&mut self.pending).positions {
            let (from, to) = (self.consumed.get(&loader), position.place());
            if let Some(from) = from.map(Position::place).filter(|from| to < *from) {
                tracing::warn!(loader, %from, %to, "a loader went back: a run that is saved now continues from there");
            }
            self.consumed.insert(loader, position);
        }
    }

    /// A run that is resumed after the last update divides the loader's batches so.
    pub(super) fn divide(&mut self, loader: &str, division: &Division) {
        if let Some(position) = self.consumed.get_mut(loader) {
            position.division = Some(division.clone());
        }
    }

    pub(super) fn consumed(&self, loader: &str) -> Option<&Position> {
        self.consumed.get(loader)
    }

    /// The loaders of which an update has consumed a batch, each with the place of its next one.
    pub(super) fn places(&self) -> impl Iterator<Item = (&String, Place)> {
        let consumed = self.consumed.iter();
        consumed.map(|(loader, position)| (loader, position.place()))
    }
}

/// Where loaders have to continue after a trainer's state was loaded, until the first batch of each has come.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// The saved places, by the loaders' names, and whether a loader has gone there.
    starts: Mutex<Vec<(String, Place, bool)>>,
    /// The loaders whose first batch has come; `None` if no state was loaded.
    seen: Option<Vec<String>>,
}

impl Awaited {
    /// Awaits loaders at these places, and all others at their beginning.
    pub(super) fn restore<'a>(&mut self, places: impl Iterator<Item = (&'a String, Place)>) {
        let starts = places.map(|(loader, at)| (loader.clone(), at, false));
        *self.starts.get_mut() = starts.collect();
        self.seen = Some(Vec::new());
    }

    /// The loaders that no loader has continued yet.
    pub(super) fn unclaimed(&self) -> Vec<String> {
        let starts = self.starts.lock();
        let unclaimed = starts.iter().filter(|(.., is_claimed)| !is_claimed);
        unclaimed.map(|(loader, ..)| loader.clone()).collect()
    }

    pub(super) fn claim(&self, loader: &str, at: Place) {
        let mut starts = self.starts.lock();
        if let Some(start) = starts.iter_mut().find(|(name, ..)| name == loader) {
            (start.1, start.2) = (at, true);
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
            let saved = starts.iter().find(|(name, ..)| *name == loader);
            let saved = saved.map(|(_, at, _)| *at);
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
                None if !unclaimed.is_empty() => DataError::renamed(&loader, &unclaimed),
                saved => DataError::Position(format!(
                    "the trainer's saved run stopped before {} of loader `{loader}`, and the loader was at {begin}: call \
                     `loader.resume(&trainer)` after the trainer's state is loaded, or build the loader with `.accept_changed_data()`",
                    saved.unwrap_or_default()
                )),
            };
            return Err(error.into());
        }
        for origin in origins {
            starts.retain(|(name, ..)| name != origin.loader);
            if !seen.iter().any(|name| name == origin.loader) {
                seen.push(origin.loader.to_owned());
            }
        }
        Ok(elsewhere)
    }
}
