use super::core::Core;
use super::ranks::Ranks;
use super::report::StepReport;
use crate::batch::{Engine, Event, EventKind, Measured, Processed, ended, run_phase};
use crate::error::{Error, Phase, Result};
use crate::memory::{DeviceMemory, recover, unmask};
use crate::optim::{Commit, StateDict};

/// How an update is applied. What ranks do together is in the module [`ranks`](super::ranks).
impl<O: Commit> Core<O> {
    /// Applies the update, together with the other ranks if there are some.
    pub(super) fn update(
        &mut self,
        engine: &Engine,
        processed: &mut Processed<()>,
    ) -> Result<StepReport> {
        if self.shard.is_none() {
            self.shard()?;
        }
        let report = match self.ranks {
            None => self.apply(engine, processed),
            Some(_) => self.apply_together(engine, processed),
        };
        report.inspect(StepReport::note_loss)
    }

    /// Applies the update, once more if it ran out of memory. Completes an exhaustion in it, and reports if it went over a soft limit.
    pub(super) fn apply(
        &mut self,
        engine: &Engine,
        processed: &mut Processed<()>,
    ) -> Result<StepReport> {
        let memory = engine.memory.as_ref();
        let _turn = memory.map(DeviceMemory::turn);
        let measured = Measured::begin(memory);
        let _piece = engine.piece(0, || self.held().0);
        let report = run_phase(Phase::Optimizer, Some((engine, &measured)), || {
            // The ranks add theirs once.
            let mut sum = None;
            let commit = |core: &mut Self, sum: &mut _| {
                let done = core.commit(sum);
                done.map_err(|error| unmask(error, &engine.device))
            };
            let mut report = commit(self, &mut sum);
            if let Err(Error::ResourceExhausted(found)) = report {
                let exhausted = measured.exhausted(found, Some(self.held().0), None);
                engine.notify(|| EventKind::Exhausted(&exhausted));
                // Nothing has changed. The graph is gone and the device is idle, so a second attempt may succeed.
                recover(&engine.device)?;
                let cause = exhausted.cause;
                let event = Event::UpdateRetried { cause };
                tracing::warn!(step = self.accumulator.updates + 1, error = %exhausted, "{event}");
                engine.happened(event, &mut processed.events);
                processed.retries += 1;
                report = commit(self, &mut sum);
            }
            if report.is_ok() {
                // At once: an observer may panic after this.
                self.positions.consume();
                // The other ranks' elements come later.
                self.accumulator.is_interrupted =
                    self.ranks.is_some() && self.accumulator.optimizer.is_sharded();
            }
            report
        });
        let report = self.complete(engine, &measured, report)?;
        let known = measured.peak().zip(measured.limit());
        if let Some((peak, limit)) = known.filter(|(peak, limit)| peak > limit) {
            // No micro-batch size would have helped, so this is reported and changes nothing.
            let event = Event::OverLimit { peak, limit };
            tracing::warn!("{event}");
            engine.happened(event, &mut processed.events);
        }
        processed.updated = report.updated;
        Ok(report)
    }

    /// Adds to an exhaustion who holds the memory, and what would help.
    pub(super) fn complete<T>(
        &self,
        engine: &Engine,
        measured: &Measured,
        done: Result<T>,
    ) -> Result<T> {
        let Err(Error::ResourceExhausted(found)) = done else {
            return done;
        };
        let (held, remedies) = self.held();
        let exhausted = measured.exhausted(found, Some(held), None);
        Err(ended(exhausted, false, remedies, engine.memory.as_ref()))
    }

    /// Updates. What depends on all gradients is summed over the ranks, each of which measures its elements.
    fn commit(&mut self, known: &mut Option<f64>) -> Result<StepReport> {
        let Some((shard, of)) = &mut self.shard else {
            return self.accumulator.commit(O::commit);
        };
        let (slots, ranks) = (&self.accumulator.slots, &self.ranks);
        if *of != slots.fingerprint {
            (*shard, *of) = slots.shard(ranks.as_ref().map_or(0, Ranks::rank));
        }
        self.accumulator.commit(|optimizer, gradients| {
            let Some(own) = optimizer.measure(gradients, shard)? else {
                return optimizer.commit(gradients);
            };
            let sum = match (*known, ranks) {
                (Some(sum), _) => sum,
                (None, Some(ranks)) => ranks.sum(own)?,
                (None, None) => own,
            };
            *known = Some(sum);
            optimizer.commit_measured(gradients, sum)
        })
    }

    /// Continues with another optimizer, which gets a shard of its own before the next update.
    pub(super) fn replace_optimizer(&mut self, optimizer: O) -> O {
        self.drop_window();
        self.given = 0;
        (self.shard, self.is_replaced) = (None, true);
        self.accumulator.slots.is_sharded = false;
        self.accumulator.replace_optimizer(optimizer)
    }

    /// Gives the optimizer the elements that it keeps state for, if it awaits that.
    pub(super) fn shard(&mut self) -> Result<()> {
        let accumulator = &mut self.accumulator;
        let is_sharded = accumulator.optimizer.is_sharded();
        if !is_sharded && self.ranks.is_none() {
            return Ok(());
        }
        let rank = self.ranks.as_ref().map_or(0, Ranks::rank);
        let shard = accumulator.slots.shard(rank);
        if is_sharded {
            accumulator.optimizer.shard(&shard.0, None)?;
            accumulator.slots.is_sharded = true;
        }
        self.shard = Some(shard);
        Ok(())
    }

    /// The optimizer's state; with a sharded one the whole on rank 0, and nothing on the others.
    pub(super) fn optimizer_state(&self) -> Result<StateDict> {
        let own = self.accumulator.optimizer_state();
        match &self.ranks {
            _ if !self.accumulator.optimizer.is_sharded() => own,
            Some(ranks) => ranks.merge(own),
            None => StateDict::merge(vec![own?]),
        }
    }
}
