use serde::{Deserialize, Serialize};

use super::division::Division;
use super::place::Place;

/// The changes of the division among ranks, each with the place of the first batch that it applies to, in order. Before the first one the
/// parts are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Divisions(Option<Box<Changes>>);

/// Apart, because most loaders have none, and each keeps several lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Changes(Vec<(Place, Division)>);

impl Divisions {
    fn changes(&self) -> &[(Place, Division)] {
        self.0.as_ref().map_or(&[], |changes| &changes.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes().is_empty()
    }

    /// The division of the batch at a place; `None` for equal parts.
    pub(crate) fn at(&self, place: Place) -> Option<&Division> {
        let begun = self.changes().iter().take_while(|(from, _)| *from <= place);
        begun.last().map(|(_, division)| division)
    }

    /// The division of the last batches; `None` for equal parts.
    pub(crate) fn last(&self) -> Option<&Division> {
        self.changes().last().map(|(_, division)| division)
    }

    /// Divides so from a place on.
    pub(crate) fn set(&mut self, from: Place, division: &Division) {
        if let Some(changes) = &mut self.0 {
            changes.0.retain(|(begun, _)| *begun < from);
        }
        let is_known = match self.last() {
            Some(last) => last == division,
            None => division.is_equal(),
        };
        if !is_known {
            let changes = self.0.get_or_insert_default();
            changes.0.push((from, division.clone()));
        } else if self.is_empty() {
            self.0 = None;
        }
    }

    /// Makes the changes of `later` too.
    pub(crate) fn extend(&mut self, later: &Self) {
        for (from, division) in later.changes() {
            self.set(*from, division);
        }
    }

    /// Forgets what no batch from this place on is divided by.
    pub(crate) fn forget_before(&mut self, place: Place) {
        let Some(changes) = &mut self.0 else { return };
        let changes = &mut changes.0;
        let begun = changes.iter().take_while(|(from, _)| *from <= place);
        let past = begun.count().saturating_sub(1);
        changes.drain(..past);
        let is_equal = |(from, division): &(Place, Division)| *from <= place && division.is_equal();
        if changes.first().is_some_and(is_equal) {
            changes.remove(0);
        }
        if changes.is_empty() {
            self.0 = None;
        }
    }

    /// Whether they divide among so many ranks.
    pub(crate) fn are_among(&self, ranks: usize) -> bool {
        let mut changes = self.changes().iter();
        changes.all(|(_, division)| division.ranks() == ranks)
    }
}
