use std::time::Instant;

use candle_core::{Tensor, Var};

use super::accumulator::GradientAccumulator;
use super::accumulator_builder::GradientAccumulatorBuilder;
use super::buffers::Buffers;
use super::loss::Loss;
use super::own_shard::OwnShard;
use super::positions::Positions;
use super::ranks::{Ranks, Spent};
use super::reach::Reach;
use crate::batch::{
    Attempt, Batch, Engine, Failure, Held, MicroBatch, Origin, Processed, Work, extent_of, waited,
};
use crate::error::{Error, Holding, Phase, Result, WindowLost};
use crate::optim::Commit;

/// The state that a trainer's step changes: accumulated gradients, named buffers, and the updated parameters.
#[derive(Debug)]
pub(super) struct Core<O> {
    pub(super) accumulator: GradientAccumulator<O>,
    /// Named buffers as they were when the window began.
    at_window: Buffers,
    /// The same at the beginning of a micro-batch.
    pub(super) at_micro_batch: Buffers,
    /// The same after its forward pass.
    after_forward: Buffers,
    /// Samples of earlier batches that a panic lost, until that is reported.
    pub(super) lost: usize,
    pub(super) positions: Positions,
    /// Those that update together with this one.
    pub(super) ranks: Option<Ranks>,
    /// What the accumulated samples took.
    pub(super) spent: Spent,
    /// Number of batches given since the last update, with those that failed.
    pub(super) given: usize,
    /// `None` without other ranks and without sharded state.
    pub(super) shard: Option<OwnShard>,
}

impl<O: Commit> Core<O> {
    pub(super) fn new(optimizer: O, buffers: &[Tensor], reach: Reach) -> Result<Self> {
        let reach = reach.with_buffers(buffers);
        Ok(Self {
            accumulator: GradientAccumulatorBuilder { optimizer, reach }.build()?,
            at_window: Buffers::new(buffers)?,
            at_micro_batch: Buffers::new(buffers)?,
            after_forward: Buffers::new(buffers)?,
            lost: 0,
            positions: Positions::default(),
            ranks: None,
            spent: Spent::default(),
            given: 0,
            shard: None,
        })
    }

    /// Accumulates a batch and ends it with `end`: if either fails, the batch is rolled back.
    pub(super) fn run<'b, B: Batch + ?Sized, L: Into<Loss>, R>(
        &mut self,
        engine: &mut Engine,
        batch: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
        end: impl FnOnce(&mut Self, &Engine, &mut Processed<()>) -> Result<R>,
    ) -> Result<(Processed<()>, R)> {
        let extent = match &self.ranks {
            // Another rank may have samples.
            Some(_) => batch.extent()?,
            None => extent_of(batch)?,
        };
        self.report_lost()?;
        self.accumulator.begin()?;
        let (earlier, updates) = (self.accumulator.samples(), self.accumulator.updates);
        if earlier == 0 {
            self.at_window.save()?;
            self.spent = Spent::default();
        }
        let origins = batch.origins();
        let waited = waited(&origins);
        let done = engine.batch(extent.samples, waited, |engine, took| {
            let mut accumulation = Accumulation {
                core: &mut *self,
                batch,
                f,
                earlier,
                updates,
                is_finished: false,
            };
            let began = Instant::now();
            let run = match extent.samples {
                0 => Ok(()),
                _ => engine.run(extent, &mut accumulation, took),
            };
            let spent = &mut accumulation.core.spent;
            spent.cost = spent.cost.saturating_add(extent.cost);
            spent.seconds += began.elapsed().as_secs_f64();
            spent.is_exhausted |= took.retries > 0;
            let ended = run.and_then(|()| end(accumulation.core, engine, took));
            accumulation.is_finished = ended.is_ok();
            drop(accumulation);
            ended.map_err(|error| self.with_lost(error))
        });
        let done = self.keep(done)?;
        // A batch without samples counts as on the other ranks.
        engine.batches += u64::from(extent.samples == 0);
        self.positions.note(&origins);
        Ok(done)
    }

    /// Divides the next batches of these loaders among the ranks. The update before is done, so a failure is the next call's error.
    pub(super) fn divide(&mut self, origins: &[Origin<'_>]) {
        let Some(ranks) = &mut self.ranks else {
            return;
        };
        if let Err(error) = ranks.divide(origins, &mut self.positions) {
            tracing::warn!(%error, "batches cannot be divided anew among the ranks");
            ranks.fail(&error.to_string());
        }
    }

    /// Drops what was accumulated before an update that failed, as the other ranks do, and adds to the error that it was lost.
    pub(super) fn with_window(&mut self, error: Error) -> Error {
        let samples = self.accumulator.samples();
        if self.ranks.is_none() || samples == 0 {
            return error;
        }
        self.reset();
        self.at_window.restore();
        WindowLost::new(samples, error).into()
    }

    /// Drops what was accumulated, on request: nothing of it counts as lost.
    pub(super) fn reset(&mut self) {
        self.given = 0;
        self.lost = 0;
        self.positions.drop_pending();
        self.accumulator.reset();
    }

    /// The variables of named buffers.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Var> {
        self.at_window.vars()
    }

    /// The variable that holds what this one held before the batches that are accumulated: another one for a named buffer.
    pub(super) fn before_window<'a>(&'a self, var: &'a Var) -> &'a Var {
        match self.accumulator.samples() {
            0 => var,
            _ => self.at_window.saved(var).unwrap_or(var),
        }
    }

    /// Adds what failed work took to the window, if there still is one.
    pub(super) fn keep<R>(
        &mut self,
        (took, done): (Processed<()>, Result<R>),
    ) -> Result<(Processed<()>, R)> {
        let window = &mut self.accumulator.window;
        match done {
            Err(error) if window.samples > 0 => {
                window.extend(took);
                Err(error)
            }
            done => done.map(|done| (took, done)),
        }
    }

    /// Reports once that a panic lost earlier batches.
    pub(super) fn report_lost(&mut self) -> Result<()> {
        if self.lost == 0 {
            return Ok(());
        }
        let reason = candle_core::Error::Msg("the work on a batch panicked".to_owned());
        Err(self.with_lost(reason.into()))
    }

    /// Adds to an error that earlier batches were lost, if they were.
    fn with_lost(&mut self, reason: Error) -> Error {
        match std::mem::take(&mut self.lost) {
            0 => reason,
            samples => WindowLost::new(samples, reason).into(),
        }
    }

    /// The bytes of the values that are saved of named buffers.
    pub(super) fn saved_bytes(&self) -> u64 {
        let saved = [&self.at_window, &self.at_micro_batch, &self.after_forward];
        saved.map(Buffers::bytes).iter().sum()
    }

    /// Returns the memory held by what is trained, and what would reduce it.
    pub(super) fn held(&self) -> Held {
        let optimizer = self.accumulator.optimizer();
        let (parameters, gradients) = self.accumulator.slots.bytes();
        let mut held = vec![
            Holding::new("parameters", parameters),
            Holding::new("accumulated gradients", gradients),
        ];
        let state = optimizer.state_bytes();
        held.extend(state.map(|bytes| Holding::new("optimizer state", bytes)));
        (held, optimizer.remedies())
    }
}

/// A batch whose micro-batches are accumulated. Dropping it unfinished, after an error or by a panic, rolls it back.
struct Accumulation<'s, 'b, O: Commit, B: ?Sized, F> {
    core: &'s mut Core<O>,
    batch: &'b B,
    f: F,
    /// Samples that the window held before.
    earlier: usize,
    /// Updates before.
    updates: u64,
    is_finished: bool,
}

impl<O: Commit, B: ?Sized, F> Drop for Accumulation<'_, '_, O, B, F> {
    /// Undoes what was added unless the batch is finished, or a panic came after the update. Means cannot be taken apart, so the whole window is dropped.
    fn drop(&mut self) {
        let accumulator = &mut self.core.accumulator;
        let is_untouched = accumulator.samples() == self.earlier && !accumulator.is_interrupted;
        if self.is_finished || is_untouched || accumulator.updates > self.updates {
            return;
        }
        // An interrupted update may have applied the window in part, so it is not lost.
        let is_lost = !accumulator.is_interrupted;
        accumulator.reset();
        self.core.positions.drop_pending();
        self.core.lost = if is_lost { self.earlier } else { 0 };
        self.core.at_window.restore();
    }
}

impl<'b, O, B, F, L> Work<()> for Accumulation<'_, 'b, O, B, F>
where
    O: Commit,
    B: Batch + ?Sized,
    F: FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<L>,
    L: Into<Loss>,
{
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure> {
        let size = attempt.micro.samples.len();
        let traces = self.core.at_micro_batch.guard()?;
        let loss = attempt.forward(self.batch, &mut self.f)?.into();
        // The backward pass needs more memory than the forward pass left, so this is the moment to stop.
        attempt.memory.check(Phase::Forward)?;
        let accumulator = &mut self.core.accumulator;
        let differentiate = || accumulator.differentiate(loss, size);
        // What runs again in the backward pass sees the buffers that it saw before, and leaves no second trace in them.
        let again = match attempt.micro.recomputes {
            true => {
                let after = self.core.after_forward.guard()?;
                self.core.at_micro_batch.restore();
                Some(after)
            }
            false => None,
        };
        let contribution = attempt.backward(differentiate)?;
        drop(again);
        if size == 1 {
            // A larger micro-batch that went over a soft limit is kept and the next one is smaller; this one cannot be.
            attempt.memory.check(Phase::Backward)?;
        }
        match attempt.observe(Phase::Accumulate, || accumulator.accumulate(contribution)) {
            Ok(()) => {
                traces.keep();
                Ok(())
            }
            Err(Error::WindowLost(lost)) => {
                drop(traces);
                self.core.at_window.restore();
                Err(match self.earlier {
                    0 => Failure::Batch(lost.reason),
                    // Earlier batches are not here to be processed again.
                    _ => Failure::Final(lost.reason),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn held(&self) -> Held {
        self.core.held()
    }
}
