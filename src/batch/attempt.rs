//! One attempt at a micro-batch: its phases, the memory that they take, and how they may fail.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

use super::engine::Engine;
use super::measured::Measured;
use super::observer::{EventKind, MicroBatch};
use super::policy::Completed;
use super::recompute::Regions;
use crate::error::{Error, Holding, MemoryReading, Phase, Remedy, Result};
use crate::regions::{Surroundings, Watched, seeded, watch};
use crate::{layers, testing};

/// Memory that is held while micro-batches run, and what would reduce it.
pub(crate) type Held = (Vec<Holding>, Vec<Remedy>);

/// The work that an [`Engine`] cuts into micro-batches.
pub(crate) trait Work<T> {
    /// Processes one micro-batch, or leaves everything as it was.
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<T, Failure>;

    fn held(&self) -> Held;
}

impl<T, F, H> Work<T> for (F, H)
where
    F: FnMut(&Attempt<'_>) -> Result<T, Failure>,
    H: Fn() -> Held,
{
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<T, Failure> {
        self.0(attempt)
    }

    fn held(&self) -> Held {
        self.1()
    }
}

/// How the work of a micro-batch failed.
pub(crate) enum Failure {
    /// Nothing of this micro-batch was kept; everything before it was.
    MicroBatch(Error),
    /// Everything that the batch had accumulated was lost too, so the batch has to start again.
    Batch(Error),
    /// Nothing may be retried, for example because a change could not be undone.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::MicroBatch(error)
    }
}

/// The work of a micro-batch in progress.
pub(crate) struct Attempt<'a> {
    pub(crate) micro: MicroBatch,
    pub(crate) memory: Measured<'a>,
    pub(super) engine: &'a Engine,
    pub(super) surroundings: Surroundings,
    /// The regions that the forward pass ran.
    pub(super) watched: RefCell<Watched>,
}

impl Engine {
    /// The work of a check on these samples, of which the policy and observers do not learn. With a seed of 0 the closure sees that of the
    /// batch's first micro-batch.
    pub(crate) fn check(&self, samples: Range<usize>, seed: u64) -> Attempt<'_> {
        Attempt {
            micro: MicroBatch {
                step: self.step,
                index: usize::from(samples.start > 0),
                samples,
                attempt: 0,
                // As the last micro-batch, so that it fits as that did.
                recomputes: self.regions.last.is_some_and(|(recomputes, _)| recomputes),
                base_seed: self.base_seed() ^ seed,
                is_check: true,
            },
            memory: Measured::begin(self.memory.as_ref()),
            engine: self,
            surroundings: Surroundings::new(self.memory.as_ref()),
            watched: RefCell::default(),
        }
    }
}

impl Attempt<'_> {
    /// Cuts the samples out of the batch with `slice` and calls `f` with them.
    pub(crate) fn forward<S, T>(
        &self,
        slice: impl FnOnce(Range<usize>) -> Result<S>,
        f: &mut impl FnMut(S, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<T> {
        let slice = self.phase(Phase::Transfer, || {
            testing::inject(Phase::Transfer)?;
            slice(self.micro.samples.clone())
        })?;
        let forward = || {
            testing::inject(Phase::Forward)?;
            seeded(self.micro.seed(), || f(slice, &self.micro))
        };
        self.phase(Phase::Forward, || {
            let (done, mut watched) = watch(!self.micro.recomputes, forward);
            watched.held = watched.held.filter(|_| done.is_ok());
            self.watched.replace(watched);
            Ok(done?)
        })
    }

    /// Runs the backward pass, and reports when regions were recomputed in it.
    pub(crate) fn backward<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.phase(Phase::Backward, || {
            let (done, _) = watch(false, work);
            let again = self.surroundings.take_again().into_iter();
            for again in again.filter(|_| !self.micro.is_check) {
                self.engine.notify(|| EventKind::PhaseEnded {
                    phase: Phase::Recompute,
                    began: again.began,
                    elapsed: again.elapsed,
                    memory: MemoryReading {
                        peak: self.memory.peak(),
                        ..again.memory
                    },
                    succeeded: again.succeeded,
                });
            }
            done
        })
    }

    /// Runs a phase of this micro-batch, and reports it unless this is a check.
    pub(crate) fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let reported = (!self.micro.is_check).then_some((self.engine, &self.memory));
        run_phase(phase, reported, || self.surroundings.around(work))
    }

    /// The bytes that a micro-batch of this cost is known to need.
    pub(super) fn need(&self, cost: usize) -> Option<u64> {
        let regions = &self.engine.regions;
        let proven = regions.proven(regions.of(self.micro.recomputes));
        proven.need(cost)
    }

    /// What recomputation would save in a micro-batch of this cost, unless it is used already.
    pub(super) fn recomputation(&self, cost: usize) -> Option<Remedy> {
        if self.micro.recomputes {
            return None;
        }
        let (regions, watched) = (&self.engine.regions, self.watched.borrow());
        let saving = regions.saving(cost, &watched);
        let has_regions = watched.count > 0 || regions.of(false) != Regions::None;
        Some(match has_regions {
            true => Remedy::new(
                "`Recompute::Always` or `Auto` for the marked regions",
                saving,
            ),
            false => Remedy::new("blocks marked with `nn::recompute`", None),
        })
    }

    /// What a loss without logits would save in a micro-batch of this cost, if there are logits worth it.
    pub(super) fn without_logits(&self, cost: usize) -> Option<Remedy> {
        const WORTH: u64 = 16;
        let saving = self.engine.regions.logits(cost, &self.watched.borrow())?;
        let is_worth = (self.memory.peak()).is_none_or(|peak| saving >= peak / WORTH);
        let advice = "`linear_cross_entropy` in place of a linear layer and `cross_entropy`";
        is_worth.then(|| Remedy::new(advice, Some(saving)))
    }

    pub(super) fn completed(&self) -> Completed {
        let mut completed = Completed::new(self.micro.samples.len());
        (completed.before, completed.peak) = (self.memory.start(), self.memory.peak());
        completed.limit = self.memory.limit();
        completed
    }
}

/// Runs one phase of a micro-batch or an update. The memory of layers is counted for it, and an exhaustion names it. Where an engine runs it,
/// observers learn of its beginning and its end, with the memory since the work began of which it is a part.
///
/// The points at which tests make memory run out lie within `work`: waiting for other ranks has none, accumulating one for each parameter.
pub(crate) fn run_phase<T>(
    phase: Phase,
    reported: Option<(&Engine, &Measured<'_>)>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _phase = layers::phase(phase);
    let work = || work().map_err(|error| error.in_phase(phase));
    // Without observers no clock is read.
    let Some((engine, memory)) = reported.filter(|(engine, _)| !engine.observers.is_empty()) else {
        return work();
    };
    engine.notify(|| EventKind::PhaseBegan(phase));
    let began = Instant::now();
    let done = work();
    engine.notify(|| EventKind::PhaseEnded {
        phase,
        began,
        elapsed: began.elapsed(),
        memory: memory.reading(),
        succeeded: done.is_ok(),
    });
    done
}
