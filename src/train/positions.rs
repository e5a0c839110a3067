use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};

use super::ranks::Data;
use crate::batch::{Origin, Place, Position};

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
            let Origin {
                loader, position, ..
            } = *origin;
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
            match self.consumed.entry(loader) {
                Entry::Vacant(entry) => {
                    entry.insert(position);
                }
                Entry::Occupied(mut entry) => {
                    let (from, to) = (entry.get().place(), position.place());
                    if to < from {
                        let loader = entry.key();
                        tracing::warn!(loader, %from, %to, "a loader went back: a run that is saved now continues from there");
                    }
                    entry.insert(position);
                }
            }
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
