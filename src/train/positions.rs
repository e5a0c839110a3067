use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::batch::Origin;
use crate::error::Result;

/// How far loaders have been read, by their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Positions {
    /// After the last batch that an update consumed.
    consumed: BTreeMap<String, String>,
    /// After the last batch that was accumulated since.
    #[serde(skip)]
    pending: BTreeMap<String, String>,
}

impl Positions {
    /// A batch was accumulated, whose parts come from here.
    pub(super) fn note(&mut self, origins: &[Origin<'_>]) {
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
            match self.pending.get_mut(loader) {
                Some(known) => position.clone_into(known),
                None => {
                    self.pending.insert(loader.to_owned(), position.to_owned());
                }
            }
        }
    }

    /// What was accumulated is lost.
    pub(super) fn drop_pending(&mut self) {
        self.pending.clear();
    }

    /// An update consumed what was accumulated.
    pub(super) fn consume(&mut self) {
        self.consumed.append(&mut self.pending);
    }

    /// Changes the position of a loader after the last batch that an update consumed.
    pub(super) fn revise(
        &mut self,
        loader: &str,
        revise: impl FnOnce(&str) -> Result<String>,
    ) -> Result<()> {
        if let Some(position) = self.consumed.get_mut(loader) {
            *position = revise(position)?;
        }
        Ok(())
    }

    pub(super) fn consumed(&self, loader: &str) -> Option<&str> {
        self.consumed.get(loader).map(String::as_str)
    }
}
