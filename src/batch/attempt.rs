//! One attempt at a micro-batch: its phases, the memory that they take, and how they may fail.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

use bytesize::ByteSize;

use super::engine::Engine;
use super::event::{EventKind, MicroBatch};
use super::measured::Measured;
use super::policy::taken;
use super::recompute::Regions;
use crate::error::{
    Cause, Error, Holding, MemoryReading, Phase, Remedy, ResourceExhausted, Result,
};
use crate::memory::unmask;
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
    pub(crate) memory: Measured,
    engine: &'a Engine,
    surroundings: Surroundings,
    /// The regions that the forward pass ran.
    pub(super) watched: RefCell<Watched>,
}

impl Engine {
    /// The work on a micro-batch, which begins now.
    pub(super) fn attempt(&self, micro: MicroBatch) -> Attempt<'_> {
        let memory = self.memory.as_ref();
        Attempt {
            micro,
            memory: Measured::begin(memory),
            engine: self,
            surroundings: Surroundings::new(memory),
            watched: RefCell::default(),
        }
    }

    /// The work of a check on these samples, of which the policy and observers do not learn. With a seed of 0 the closure sees that of the
    /// batch's first micro-batch.
    pub(crate) fn check(&self, samples: Range<usize>, seed: u64) -> Attempt<'_> {
        self.attempt(MicroBatch {
            step: self.step,
            index: usize::from(samples.start > 0),
            samples,
            attempt: 0,
            // As the last micro-batch, so that it fits as that did.
            recomputes: self.regions.last.is_some_and(|(recomputes, _)| recomputes),
            base_seed: self.base_seed() ^ seed,
            is_check: true,
        })
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
            self.surroundings.walk_back();
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

    /// Runs a phase of this micro-batch, and reports it unless this is a check. Of an error that hides another it returns that.
    pub(crate) fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let reported = (!self.micro.is_check).then_some((self.engine, &self.memory));
        run_phase(phase, reported, || {
            let done = self.surroundings.around(work);
            done.map_err(|error| unmask(error, &self.engine.device))
        })
    }

    /// Builds the exhaustion of this micro-batch, which has this cost: adds to [that of the memory](Measured::exhausted) the layers that held
    /// the most, what the policy predicts, what else holds memory, and remedies.
    pub(super) fn exhausted(
        &self,
        found: Box<ResourceExhausted>,
        held: Vec<Holding>,
        cost: usize,
        layers: Vec<Holding>,
    ) -> Box<ResourceExhausted> {
        let regions = &self.engine.regions;
        let proven = regions.proven(regions.of(self.micro.recomputes));
        let need = proven.need(cost);
        let mut exhausted = self.memory.exhausted(found, Some(held), need);
        exhausted.layers = layers;
        let (samples, start) = (self.micro.samples.clone(), self.memory.start());
        let count = samples.len();
        let plan = self.engine.policy.plan();
        let (base, each) = plan.map_or((None, None), |plan| (plan.base, plan.each));
        let predict = |samples: usize| Some(each?.saturating_mul(samples as u64));
        let activations = base.and(predict(count));
        let mut parts = [start, base, activations].into_iter();
        exhausted.expected_peak =
            parts.try_fold(0, |sum: u64, part| Some(sum.saturating_add(part?)));
        exhausted.micro_batch = Some(count);
        exhausted.samples = Some(samples);

        let (peak, limit) = (exhausted.bytes.peak, exhausted.bytes.limit);
        let other = exhausted.other_use_in_the_way().filter(|_| count == 1);
        // Without it, what else is held may be the model, which cannot be freed.
        let is_model_known = !exhausted.held.is_empty();
        if let Some(other) = other {
            exhausted.held.push(Holding::new(Holding::OTHER, other));
            if exhausted.cause == Cause::Unknown {
                exhausted.cause = limit.map_or(Cause::DeviceFull, |_| Cause::Limit);
            }
        }
        if let Some((activations, peak)) = activations.zip(peak) {
            let known = exhausted.held.iter().map(|holding| holding.bytes).sum();
            let most = peak.saturating_sub(start.unwrap_or(0).max(known));
            let holding = Holding::new(Holding::ACTIVATIONS, activations.min(most));
            exhausted.held.push(holding);
        }

        let remedies = &mut exhausted.remedies;
        if other.is_some() {
            let advice = "freeing other memory of this process, such as data, the batch itself or other models";
            remedies.push(Remedy::new(advice, other.filter(|_| is_model_known)));
        }
        if count > 1 {
            let half = count / 2;
            // A failed micro-batch may not have come to its peak; one that finished has.
            let measured = need.max(taken(peak, start)).map(|taken| taken / 2);
            let advice = format!("a micro-batch of {half}");
            remedies.push(Remedy::new(advice, predict(count - half).or(measured)));
        }
        let recomputation = self.recomputation(cost);
        let is_marked = |remedy: &Remedy| remedy.saves.is_some();
        remedies.extend(recomputation.clone().filter(is_marked));
        if let Some(peak) = peak.filter(|peak| limit.is_some_and(|limit| *peak > limit)) {
            let advice = format!("a limit of at least {}", ByteSize(peak));
            remedies.push(Remedy::new(advice, None));
        }
        remedies.extend(recomputation.filter(|remedy| !is_marked(remedy)));
        remedies.extend(self.without_logits(cost));
        let advice = "shorter samples, fewer trained parameters or a smaller model";
        remedies.push(Remedy::new(advice, None));
        exhausted
    }

    /// What recomputation would save in a micro-batch of this cost, unless it is used already.
    fn recomputation(&self, cost: usize) -> Option<Remedy> {
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
    fn without_logits(&self, cost: usize) -> Option<Remedy> {
        const WORTH: u64 = 16;
        let saving = self.engine.regions.logits(cost, &self.watched.borrow())?;
        let is_worth = (self.memory.peak()).is_none_or(|peak| saving >= peak / WORTH);
        let advice = "`linear_cross_entropy` in place of a linear layer and `cross_entropy`";
        is_worth.then(|| Remedy::new(advice, Some(saving)))
    }
}

/// Runs one phase of a micro-batch or an update. The memory of layers is counted for it, and an exhaustion names it. Where an engine runs it,
/// observers learn of its beginning and its end, with the memory since the work began of which it is a part.
///
/// The points at which tests make memory run out lie within `work`: waiting for other ranks has none, accumulating one for each parameter.
pub(crate) fn run_phase<T>(
    phase: Phase,
    reported: Option<(&Engine, &Measured)>,
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
