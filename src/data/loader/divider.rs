use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::queue::Queue;
use crate::batch::{Divide, Division, Divisions, Place};
use crate::data::loaded::Reader;
use crate::data::{Position, Tensors};
use crate::error::{DataError, Result};

/// Divides the batches of a loader, which may be gone.
pub(super) struct Divider<B> {
    pub(super) reader: Arc<Reader>,
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
                self.reader.name
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

    fn revise(&self, position: &mut Position) {
        position.divisions.extend(&self.divisions.lock());
    }
}

impl<B> fmt::Debug for Divider<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Divider")
            .field("loader", &self.reader.name)
            .field("divisions", &*self.divisions.lock())
            .finish_non_exhaustive()
    }
}
