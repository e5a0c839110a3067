use serde::{Deserialize, Serialize};

use crate::batch::{Division, Place};

/// The changes of the division among ranks, each with the place of the first batch that it applies to, in order. Before the first one the
/// parts are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Divisions(Vec<(Place, Division)>);

impl Divisions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The division of the batch at a place; `None` for equal parts.
    pub(super) fn at(&self, place: Place) -> Option<&Division> {
        let begun = self.0.iter().take_while(|(from, _)| *from <= place);
        begun.last().map(|(_, division)| division)
    }

    /// The division of the last batches; `None` for equal parts.
    pub(super) fn last(&self) -> Option<&Division> {
        self.0.last().map(|(_, division)| division)
    }

    /// Divides so from a place on.
    pub(super) fn set(&mut self, from: Place, division: &Division) {
        self.0.retain(|(begun, _)| *begun < from);
        let is_known = match self.last() {
            Some(last) => last == division,
            None => division.is_equal(),
        };
        if !is_known {
            self.0.push((from, division.clone()));
        }
    }

    /// Makes the changes of `later` too.
    pub(super) fn extend(&mut self, later: &Self) {
        for (from, division) in &later.0 {
            self.set(*from, division);
        }
    }

    /// Forgets what no batch from this place on is divided by.
    pub(super) fn forget_before(&mut self, place: Place) {
        let begun = self.0.iter().take_while(|(from, _)| *from <= place);
        let past = begun.count().saturating_sub(1);
        self.0.drain(..past);
        if self
            .0
            .first()
            .is_some_and(|(from, division)| *from <= place && division.is_equal())
        {
            self.0.remove(0);
        }
    }

    /// Whether they divide among so many ranks.
    pub(super) fn are_among(&self, ranks: usize) -> bool {
        self.0.iter().all(|(_, division)| division.ranks() == ranks)
    }
}
