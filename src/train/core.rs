//! What a step changes, and how it is undone: gradients, buffers and positions of loaders all have the values from before a batch that failed,
//! also after a panic. Where one batch cannot be taken out of a mean, the whole window is dropped, and the loss of its samples is reported
//! once.

use std::time::Instant;

use candle_core::{Tensor, Var};

use super::accumulator::{GradientAccumulator, GradientAccumulatorBuilder};
use super::buffers::{Buffers, Reach};
use super::cut::{self, Checks, Side};
use super::input::{Forward, Given};
use super::positions::{Awaited, Positions};
use super::ranks::Ranks;
use super::report::Spent;
use super::slots::Contribution;
use crate::batch::{
    Attempt, CutCheck, CutFinding, Engine, Failure, Held, Processed, Work, not_empty, waited,
};
use crate::error::{Error, Holding, Phase, Result, WindowLost};
use crate::memory::{DeviceMemory, recover};
use crate::optim::{Commit, Shard};
use crate::regions::frozen;

/// The state that a trainer's step changes: accumulated gradients, named buffers, and the updated parameters.
#[derive(Debug)]
pub(super) struct Core<O> {
    pub(super) accumulator: GradientAccumulator<O>,
    /// Variables that the caller named, which the forward pass changes by itself.
    named: Vec<Tensor>,
    /// They, and the running statistics among the parameters, as they were when the window began.
    at_window: Buffers,
    /// The same at the beginning of a micro-batch.
    pub(super) at_micro_batch: Buffers,
    /// The same after its forward pass.
    after_forward: Buffers,
    /// Samples of earlier batches that a panic lost, until that is reported.
    pub(super) lost: usize,
    pub(super) positions: Positions,
    pub(super) awaited: Awaited,
    /// Those that update together with this one.
    pub(super) ranks: Option<Ranks>,
    /// What the accumulated samples took.
    pub(super) spent: Spent,
    /// Number of batches given since the last update, with those that failed.
    pub(super) given: usize,
    /// The elements that this rank sums, and the fingerprint of the parameters; `None` without other ranks and without sharded state.
    pub(super) shard: Option<(Shard, u32)>,
    /// The optimizer is another one, which may have other running statistics.
    pub(super) is_replaced: bool,
    pub(super) checks: Checks,
}

impl<O: Commit> Core<O> {
    pub(super) fn new(optimizer: O, buffers: &[Tensor], reach: Reach) -> Result<Self> {
        let reach = reach.with_buffers(buffers);
        let accumulator = GradientAccumulatorBuilder { optimizer, reach }.build()?;
        let mut core = Self {
            accumulator,
            named: buffers.to_vec(),
            at_window: Buffers::default(),
            at_micro_batch: Buffers::default(),
            after_forward: Buffers::default(),
            lost: 0,
            positions: Positions::default(),
            awaited: Awaited::default(),
            ranks: None,
            spent: Spent::default(),
            given: 0,
            shard: None,
            is_replaced: true,
            checks: Checks::new(true),
        };
        core.follow_buffers()?;
        Ok(core)
    }

    /// Follows the running statistics of an optimizer that is new here.
    pub(super) fn follow_buffers(&mut self) -> Result<()> {
        if self.is_replaced {
            let GradientAccumulator {
                slots, optimizer, ..
            } = &self.accumulator;
            let all = slots.reach.buffers(optimizer, &self.named);
            let [window, micro_batch, forward] = [0; 3].map(|_| Buffers::new(&all));
            (self.at_window, self.at_micro_batch, self.after_forward) =
                (window?, micro_batch?, forward?);
            self.is_replaced = false;
        }
        Ok(())
    }

    /// Accumulates a batch and ends it with `end`: if either fails, the batch is rolled back.
    pub(super) fn run<R>(
        &mut self,
        engine: &mut Engine,
        given: Given<'_>,
        end: impl FnOnce(&mut Self, &Engine, &mut Processed<()>) -> Result<R>,
    ) -> Result<(Processed<()>, R)> {
        let (extent, origins) = (given.extent?, given.origins);
        if self.ranks.is_none() {
            // With other ranks, one of them may have samples.
            not_empty(extent)?;
        }
        let elsewhere = self.awaited.check(&origins)?;
        self.report_lost()?;
        self.accumulator.begin()?;
        if self.accumulator.samples() == 0 {
            self.follow_buffers()?;
            self.at_window.save()?;
            self.spent = Spent::default();
        }
        let waited = waited(&origins);
        let batches = self.accumulator.window.batches;
        let step = self.accumulator.batches + batches as u64;
        let done = engine.batch(step, extent.samples, waited, |engine, took| {
            for event in elsewhere {
                tracing::warn!("{event}");
                engine.happened(event, &mut took.events);
            }
            let mut accumulation = Accumulation::new(self, given.forward, given.truncate);
            accumulation.core.positions.begin(&origins);
            let began = Instant::now();
            let run = match extent.samples {
                0 => Ok(()),
                _ => engine.run(extent, &mut accumulation, took),
            };
            let spent = &mut accumulation.core.spent;
            spent.cost = spent.cost.saturating_add(extent.cost);
            spent.seconds += began.elapsed().as_secs_f64();
            spent.is_exhausted |= took.retries > 0;
            let checked = run.and_then(|()| accumulation.check_first_cut(engine, took));
            let ended = checked.and_then(|()| {
                // With the update, so that the two cannot disagree.
                accumulation.core.accumulator.window.batches = batches + 1;
                end(accumulation.core, engine, took)
            });
            accumulation.is_finished = ended.is_ok();
            drop(accumulation);
            ended.map_err(|error| WindowLost::with(std::mem::take(&mut self.lost), error))
        });
        let done = self.keep(done)?;
        Ok(done)
    }

    /// Compares samples of a batch together with the same samples in two parts: first a few, then more as long as they fit.
    pub(super) fn check_cut(&mut self, engine: &Engine, given: Given<'_>) -> Result<CutCheck> {
        let all = not_empty(given.extent?)?.samples;
        self.accumulator.begin()?;
        if self.accumulator.samples() == 0 {
            self.follow_buffers()?;
        }
        let mut accumulation = Accumulation::new(self, given.forward, given.truncate);
        let (mut samples, mut fits) = (cut::FEW.min(all), None);
        while samples > 1 {
            match accumulation.check(engine, samples) {
                Ok(CutFinding::Agrees) if samples < all => {
                    fits = Some(CutCheck::new(samples, CutFinding::Agrees));
                    samples = samples.saturating_mul(2).min(all);
                }
                Err(Error::ResourceExhausted(_)) if fits.is_some() || samples > 2 => {
                    recover(&engine.device)?;
                    match fits {
                        Some(check) => return Ok(check),
                        None => samples = (samples / 2).max(2),
                    }
                }
                done => return Ok(CutCheck::new(samples, done?)),
            }
        }
        let alone = CutFinding::Undecided("a single sample cannot be cut".to_owned());
        Ok(CutCheck::new(all, alone))
    }

    /// Drops what was accumulated before an update that failed, as the other ranks do, and adds to the error that it was lost.
    pub(super) fn with_window(&mut self, error: Error) -> Error {
        match self.ranks {
            Some(_) => {
                let lost = std::mem::take(&mut self.lost);
                WindowLost::with(lost + self.drop_window(), error)
            }
            None => error,
        }
    }

    /// Drops what was accumulated, with its traces in buffers, and returns its number of samples.
    pub(super) fn drop_window(&mut self) -> usize {
        if self.accumulator.samples() > 0 {
            self.at_window.restore();
        }
        self.forget_window()
    }

    /// Drops what was accumulated, which does not count as lost. Buffers stay.
    pub(super) fn forget_window(&mut self) -> usize {
        self.lost = 0;
        self.positions.drop_pending();
        self.accumulator.reset()
    }

    /// The variables of named buffers.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Var> {
        self.at_window.vars().take(self.named.len())
    }

    /// The variable that holds what this one held before the batches that are accumulated: another one for a buffer.
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
        let panicked = || candle_core::Error::Msg("the work on a batch panicked".to_owned());
        match std::mem::take(&mut self.lost) {
            0 => Ok(()),
            lost => Err(WindowLost::with(lost, panicked().into())),
        }
    }

    /// The bytes of the values that are saved of buffers.
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
struct Accumulation<'s, O: Commit> {
    core: &'s mut Core<O>,
    forward: &'s mut Forward<'s>,
    truncate: &'s dyn Fn(usize),
    /// Samples that the window held before.
    earlier: usize,
    /// Batches that updates had consumed before.
    consumed: u64,
    /// Batches that the window held before.
    batches: usize,
    is_finished: bool,
}

impl<O: Commit> Drop for Accumulation<'_, O> {
    /// Undoes what was added unless the batch is finished, or a panic came after the update. Means cannot be taken apart, so the whole window is dropped.
    fn drop(&mut self) {
        self.core.positions.end(self.is_finished);
        let accumulator = &mut self.core.accumulator;
        // Not the number of updates: one of weight 0 consumes its batches and does not count.
        if self.is_finished || accumulator.batches > self.consumed {
            return;
        }
        if accumulator.samples() == self.earlier && !accumulator.is_interrupted {
            accumulator.window.batches = self.batches;
            return;
        }
        // An interrupted update may have applied the window in part, so it is not lost.
        let is_lost = !accumulator.is_interrupted;
        self.core.at_window.restore();
        self.core.forget_window();
        self.core.lost = if is_lost { self.earlier } else { 0 };
    }
}

impl<'s, O: Commit> Accumulation<'s, O> {
    fn new(
        core: &'s mut Core<O>,
        forward: &'s mut Forward<'s>,
        truncate: &'s dyn Fn(usize),
    ) -> Self {
        Self {
            earlier: core.accumulator.samples(),
            consumed: core.accumulator.batches,
            batches: core.accumulator.window.batches,
            core,
            forward,
            truncate,
            is_finished: false,
        }
    }

    /// Checks the closure after the first batch that was cut, when the sizes that fit are known.
    fn check_first_cut(&mut self, engine: &Engine, took: &mut Processed<()>) -> Result<()> {
        let Some(samples) = self.core.checks.due(&took.sizes) else {
            return Ok(());
        };
        let done = match cut::may_fit(engine, samples) {
            true => self.check(engine, samples),
            false => Ok(CutFinding::Undecided("two samples do not fit".to_owned())),
        };
        let event = self.core.checks.note(samples, done, engine)?;
        engine.happened(event, &mut took.events);
        Ok(())
    }

    /// Compares the first samples together with the same samples in two parts. Nothing changes.
    fn check(&mut self, engine: &Engine, samples: usize) -> Result<CutFinding> {
        let _turn = engine.memory.as_ref().map(DeviceMemory::turn);
        let (core, forward) = (&*self.core, &mut *self.forward);
        let mut run = |samples, seed| {
            let attempt = engine.check(samples, seed);
            let times = if seed > 0 { cut::TIMES } else { 1. };
            let _traces = core.at_micro_batch.guard()?;
            let contribution = differentiate(core, forward, &attempt, times)?;
            let changes_buffers = core.at_micro_batch.have_changed()?;
            Side::new(
                &contribution,
                &core.accumulator.slots,
                times,
                changes_buffers,
            )
        };
        frozen(|| cut::compare(samples, &mut run))
    }
}

/// Runs the forward pass, and the backward pass of the loss multiplied by `times`.
fn differentiate<O: Commit>(
    core: &Core<O>,
    forward: &mut Forward<'_>,
    attempt: &Attempt<'_>,
    times: f64,
) -> Result<Contribution> {
    let loss = forward(attempt)?;
    // The backward pass needs more memory than the forward pass left, so this is the moment to stop.
    attempt.memory.check(Phase::Forward)?;
    // What runs again in the backward pass sees the buffers that it saw before, and leaves no second trace in them.
    let _again = match attempt.micro.recomputes {
        true => {
            let after = core.after_forward.guard()?;
            core.at_micro_batch.restore();
            Some(after)
        }
        false => None,
    };
    let samples = attempt.micro.samples.len();
    attempt.backward(|| core.accumulator.differentiate(loss, samples, times))
}

impl<O: Commit> Work<()> for Accumulation<'_, O> {
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure> {
        // The outputs go with failed work, because they may hold memory.
        self.accumulate(attempt).inspect_err(|failure| {
            (self.truncate)(match failure {
                Failure::MicroBatch(_) => attempt.micro.index,
                Failure::Batch(_) | Failure::Final(_) => 0,
            });
        })
    }

    fn held(&self) -> Held {
        self.core.held()
    }
}

impl<O: Commit> Accumulation<'_, O> {
    /// Accumulates one micro-batch, or leaves everything as it was.
    fn accumulate(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure> {
        let traces = self.core.at_micro_batch.guard()?;
        let contribution = differentiate(self.core, self.forward, attempt, 1.)?;
        let accumulator = &mut self.core.accumulator;
        if attempt.micro.samples.len() == 1 {
            // A larger micro-batch that went over a soft limit is kept and the next one is smaller; this one cannot be.
            attempt.memory.check(Phase::Backward)?;
        }
        match attempt.phase(Phase::Accumulate, || accumulator.accumulate(contribution)) {
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
}
