use super::reduce::Ranks;
use super::word::{Spent, Word};
use crate::batch::{Hold, Origin, Place};
use crate::distributed::Effort;
use crate::error::Result;
use crate::train::positions::Positions;

impl Ranks {
    /// Divides the next batches of these loaders as the ranks' speeds suggest, the same on all ranks. `positions` are made to know it.
    pub(in crate::train) fn divide(
        &mut self,
        origins: &[Origin<'_>],
        positions: &mut Positions,
    ) -> Result<()> {
        for origin in origins {
            let Some(divide) = origin.divide else {
                continue; // data of the rank's own
            };
            if !std::mem::replace(&mut self.has_divided, true) {
                // A resumed run goes on with the parts that it had.
                self.shares.begin_with(&divide.division());
            }
            let division = self.shares.division();
            if divide.division() == *division {
                continue;
            }
            let hold = Hold::new(divide);
            let places = self
                .group
                .control()
                .gather("divide batches", &hold.next().to_bytes())?;
            let places = places
                .iter()
                .filter_map(|bytes| bytes.as_slice().try_into().ok());
            let from = places.map(Place::from_bytes).max().unwrap_or_default();
            hold.divide(from, division)?;
            positions.revise(origin.loader, |position| divide.revise(position));
            tracing::info!(loader = origin.loader, %from, parts = ?division, "batches are divided anew among the ranks");
        }
        Ok(())
    }

    /// Learns from what each rank has done for an update.
    pub(super) fn learn(&mut self, words: &[Word]) -> Result<()> {
        let efforts = words.iter().map(|word| {
            let Spent {
                cost,
                seconds,
                is_exhausted,
            } = word.spent;
            let effort = Effort::new(word.samples, cost, seconds);
            match is_exhausted {
                true => effort.exhausted(None),
                false => effort,
            }
        });
        let efforts: Vec<_> = efforts.collect();
        self.shares.observe(&efforts).map(|_| ())
    }
}
