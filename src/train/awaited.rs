use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::batch::{Origin, Place};
use crate::error::{DataError, Result};

/// Where loaders have to continue after a trainer's state was loaded, by their names, until their first batch has come; and whether a loader has
/// gone there.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<BTreeMap<String, (Place, bool)>>);

impl Awaited {
    /// Awaits loaders at these places.
    pub(super) fn restore<'a>(&mut self, places: impl Iterator<Item = (&'a String, Place)>) {
        let starts = places.map(|(loader, at)| (loader.clone(), (at, false)));
        *self.0.get_mut() = starts.collect();
    }

    /// The loaders that no loader has continued yet.
    pub(super) fn unclaimed(&self) -> Vec<String> {
        let starts = self.0.lock();
        let unclaimed = starts.iter().filter(|(_, (_, is_claimed))| !is_claimed);
        unclaimed.map(|(loader, _)| loader.clone()).collect()
    }

    pub(super) fn claim(&self, loader: &str, at: Place) {
        if let Some(start) = self.0.lock().get_mut(loader) {
            *start = (at, true);
        }
    }

    /// Refuses a batch whose loaders do not continue where the saved run stopped. `is_known` says which loaders the trainer has a position of.
    pub(super) fn check(
        &mut self,
        origins: &[Origin<'_>],
        is_known: impl Fn(&str) -> bool,
    ) -> Result<()> {
        if self.0.get_mut().is_empty() {
            return Ok(());
        }
        let mut unclaimed = self.unclaimed();
        unclaimed.retain(|name| !origins.iter().any(|origin| origin.loader == name));
        let starts = self.0.get_mut();
        let strict = origins.iter().filter(|origin| !origin.accepts_changes);
        for Origin { loader, begin, .. } in strict {
            match starts.get(*loader) {
                Some((at, _)) if at == begin => {}
                Some((at, _)) => {
                    return Err(DataError::NotResumed {
                        loader: (*loader).to_owned(),
                        saved: at.to_string(),
                        found: begin.to_string(),
                    }
                    .into());
                }
                None if is_known(loader) || unclaimed.is_empty() => {}
                None => return Err(DataError::renamed(loader, unclaimed).into()),
            }
        }
        for origin in origins {
            starts.remove(origin.loader);
        }
        Ok(())
    }
}
