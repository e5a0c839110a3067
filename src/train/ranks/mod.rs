//! A trainer whose update is that of all ranks.
//!
//! Ranks meet once for each update. First each one tells the others, in host memory, whether it can update and with what weight: between two
//! meetings it cuts, retries and recomputes its samples as it likes. It also says which batches of which loaders it has, as a checksum; if these
//! differ, the ranks exchange the texts and none updates. If all can, they add their gradients, each scaled by its part of the
//! weight, and every rank applies the same update. If one cannot, none does.

mod data;
mod reduce;
mod start;
mod status;

pub(super) use data::Data;
pub(super) use reduce::Ranks;
pub(super) use start::join;
pub(super) use status::Turn;

use std::time::Instant;

use super::core::Core;
use super::report::StepReport;
use crate::batch::{Engine, Measured, Processed};
use crate::error::Result;
use crate::optim::Commit;

impl<O: Commit> Core<O> {
    /// Adds the gradients of all ranks, and applies the update on each.
    pub(super) fn apply_together(
        &mut self,
        engine: &Engine,
        processed: &mut Processed<()>,
    ) -> Result<StepReport> {
        let Some(ranks) = &mut self.ranks else {
            return self.apply(engine, processed);
        };
        self.accumulator.refuse_if_interrupted()?;
        // The ranks' times say how batches are divided, so what is only queued has to be done. The exchange would wait for it too.
        let began = Instant::now();
        engine.device.synchronize()?;
        self.spent += began.elapsed().as_secs_f64();
        let measured = Measured::begin(engine.memory.as_ref());
        let (spent, data) = (std::mem::take(&mut self.spent), self.positions.data());
        let exchange = ranks.exchange(engine, &measured, &mut self.accumulator, spent, &data);
        let mut exchange = self.complete(engine, &measured, exchange)?;
        let mut report = self.apply(engine, processed);
        let (ranks, accumulator) = (&mut self.ranks, &mut self.accumulator);
        if let (Ok(_), Some(ranks)) = (&report, ranks.as_mut()) {
            // Until it returns, because a panic may leave other ranks' elements as they were.
            accumulator.is_interrupted = true;
            match ranks.share(engine, &measured, accumulator) {
                Ok(shared) => {
                    accumulator.is_interrupted = false;
                    exchange.reduced += shared;
                }
                // This rank's elements have moved, and not all others.
                Err(error) => report = Err(accumulator.interrupt(error)),
            }
        }
        if let Some(ranks) = ranks {
            ranks.end();
            if let Err(error) = &report {
                // The others may have updated.
                ranks.fail(&error.to_string());
            }
        }
        let mut report = report?;
        report.exchange = Some(exchange);
        Ok(report)
    }
}
