use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::queue::Queue;
use crate::batch::{Divide, Division, Place};
use crate::data::divisions::Divisions;
use crate::data::{Position, Tensors};
use crate::error::{DataError, Error, Result};

/// Divides the batches of a loader, which may be gone.
pub(super) struct Divider<B> {
    pub(super) loader: Arc<str>,
    pub(super) queue: Weak<Queue<B>>,
    pub(super) divisions: Arc<Mutex<Divisions>>,
    pub(super) ranks: usize,
}

impl<B: Tensors + Send> Divide for Divider<B> {
    fn division(&self) -> Division {
        let last = self.divisions.lock().last().cloned();
        last.unwrap_or_else(|| Division::equal(self.ranks))
    }

    fn stop(&self) -> Place {
        let queue = self.queue.upgrade();
        queue.map(|queue| queue.hold()).unwrap_or_default()
    }

    fn go_on(&self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.go_on();
        }
    }

    fn divide(&self, from: Place, division: &Division) -> Result<()> {
        let (found, ranks) = (division.ranks(), self.ranks);
        if found != ranks {
            let problem = format!(
                "loader `{}` has {ranks} ranks, a division is among {found}",
                self.loader
            );
            return Err(DataError::Setting(problem).into());
        }
        match self.queue.upgrade() {
            Some(queue) => Ok(queue.divide(from, division)?),
            None => {
                self.divisions.lock().set(from, division);
                Ok(())
            }
        }
    }

    fn revise(&self, position: &str) -> Result<String> {
        let read = serde_json::from_str(position).map_err(|error| DataError::Position {
            loader: self.loader.to_string(),
            differences: vec![error.to_string()],
        });
        let mut position: Position = read?;
        position.divisions.extend(&self.divisions.lock());
        serde_json::to_string(&position).map_err(Error::external)
    }
}

impl<B> fmt::Debug for Divider<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Divider")
            .field("loader", &self.loader)
            .field("divisions", &*self.divisions.lock())
            .finish_non_exhaustive()
    }
}
