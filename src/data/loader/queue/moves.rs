use super::{Queue, Ready};
use crate::batch::{Division, Divisions, Place};
use crate::data::{Position, Tensors};
use crate::error::DataError;

impl<B: Tensors> Queue<B> {
    /// Goes to a position; what was read ahead is dropped.
    pub(in super::super) fn move_to(&self, position: &Position) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.jobs.move_to(position);
        (state.wanted, state.end, state.ready_bytes) = (state.next, None, 0);
        let dropped = std::mem::take(&mut state.ready);
        drop(state);
        drop(dropped);
        self.room.notify_all();
    }

    /// Begins no further job until [`go_on`](Self::go_on), and returns the place of the first that was not begun.
    pub(in super::super) fn hold(&self) -> Place {
        let mut state = self.state.lock();
        state.holds += 1;
        state.jobs.place()
    }

    pub(in super::super) fn go_on(&self) {
        let mut state = self.state.lock();
        state.holds = state.holds.saturating_sub(1);
        drop(state);
        self.room.notify_all();
    }

    /// Divides the jobs from a place on.
    pub(in super::super) fn divide(
        &self,
        from: Place,
        division: &Division,
    ) -> Result<(), DataError> {
        let state = self.state.lock();
        // Not the next place: a stream's epoch may have ended since the loader was held.
        if let Some(begun) = state.jobs.begun.filter(|begun| from <= *begun) {
            return Err(DataError::Setting(format!(
                "batches cannot be divided from {from} on: {begun} was begun; hold the loaders of all ranks, and divide from the largest \
                 of their next places on"
            )));
        }
        state.jobs.divisions.lock().set(from, division);
        Ok(())
    }

    /// The divisions of the batches from a place on. Earlier ones are forgotten.
    pub(in super::super) fn divisions_from(&self, next: (u64, usize, usize)) -> Divisions {
        let state = self.state.lock();
        let mut divisions = state.jobs.divisions.lock();
        divisions.forget_before(Place::new(next));
        divisions.clone()
    }

    pub(in super::super) fn ready(&self) -> Ready {
        let state = self.state.lock();
        Ready {
            batches: state.ready.len(),
            bytes: state.ready_bytes,
        }
    }
}
