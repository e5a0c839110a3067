//! Runs a batch: each of its samples is processed once, in micro-batches of the sizes that the policy chooses.
//!
//! A failed attempt leaves no trace in what is computed. The next one at the same position is smaller, or recomputes regions, or is the same once
//! more, so that a batch ends: with its last sample, or with one sample that does not fit. A batch whose accumulated gradients were lost begins anew,
//! three times at most.

use std::time::Instant;

use super::attempt::{Failure, Work};
use super::engine::{Engine, Processed};
use super::event::{Event, EventKind, MicroBatch};
use super::measured::{ended, is_passing};
use super::policy::{Completed, Extent, Failed, taken};
use super::recompute::{Recompute, Regions};
use crate::error::{Error, Result};
use crate::layers;
use crate::marks;
use crate::memory::{DeviceMemory, recover};
use crate::mix::mix;

/// Number of times that a batch is restarted after its accumulated gradients were lost; each restart costs a whole batch.
const MAX_RESTARTS: usize = 3;

/// The progress of a batch.
struct Position {
    batch: Extent,
    done: usize,
    attempt: usize,
    restarts: usize,
    /// The size to try once more.
    again: Option<usize>,
    /// Further attempts at this position must be smaller.
    below: usize,
    /// An attempt at this position failed with regions kept, so that they are recomputed now.
    must_recompute: bool,
}

impl Position {
    fn new(batch: Extent, done: usize, restarts: usize) -> Self {
        Self {
            batch,
            done,
            attempt: 0,
            restarts,
            again: None,
            below: usize::MAX,
            must_recompute: false,
        }
    }
}

impl Engine {
    /// Runs `work` for runs of samples until each sample of the batch was processed exactly once.
    ///
    /// It ends: at one position each failure but one makes the size smaller, each success moves on, and restarts are bounded.
    pub(crate) fn run<T>(
        &mut self,
        batch: Extent,
        work: &mut impl Work<T>,
        processed: &mut Processed<T>,
    ) -> Result<()> {
        let mut at = Position::new(batch, 0, 0);
        let memory = self.memory.clone();
        let began = Instant::now();
        self.choose_way(&batch);
        self.policy.begin(&batch);
        while at.done < batch.samples {
            // Two trainers on one memory take turns, so that each knows what is in use.
            let _turn = memory.as_ref().map(DeviceMemory::turn);
            if let Some(memory) = &memory {
                // Other processes' use takes asking the driver, so not before every micro-batch.
                let now = match at.done == 0 || at.attempt > 0 {
                    true => {
                        memory.maintain();
                        memory.surroundings()
                    }
                    false => memory.reading(),
                };
                self.note_change(&at, &mut processed.events, |engine| {
                    engine.policy.prepare(&now);
                });
            }
            let again = at.again.take();
            let size = again.unwrap_or_else(|| self.size(&at).min(at.below - 1));
            let extent = batch.part(size);
            let recomputes = self.recomputes(&at);
            self.note_regions(recomputes, size, &mut processed.events);
            let attempt = self.attempt(MicroBatch {
                step: self.step,
                index: processed.sizes.len(),
                samples: at.done..at.done + size,
                attempt: at.attempt,
                recomputes,
                base_seed: self.base_seed(),
                is_check: false,
            });
            let piece = self.piece(size, || work.held().0);
            let done = work.micro_batch(&attempt);
            if !recomputes {
                let watched = &attempt.watched;
                marks::could_save(|| self.regions.saving(extent.cost, &watched.borrow()));
            }
            let layers = if done.is_err() {
                layers::largest(&self.device)
            } else {
                Vec::new()
            };
            drop(piece);
            let mut is_final = false;
            let (error, is_lost) = match done {
                Ok(result) => {
                    let (mut completed, memory) = (Completed::new(size), &attempt.memory);
                    (completed.before, completed.peak) = (memory.start(), memory.peak());
                    completed.limit = memory.limit();
                    let (micro, watched) = (attempt.micro, attempt.watched); // frees the engine
                    self.regions.note(extent.cost, &watched.into_inner());
                    completed.regions = self.regions.of(recomputes);
                    let took = taken(completed.peak, completed.before);
                    self.measured = took.map(|took| (size, took)).or(self.measured);
                    let (micro, completed) = (&micro, &completed);
                    self.notify(|| EventKind::MicroBatchEnded { micro, completed });
                    self.regions
                        .proven_mut(completed.regions)
                        .note(extent.cost, completed);
                    processed.results.push(result);
                    processed.sizes.push(size);
                    self.note_change(&at, &mut processed.events, |engine| {
                        engine.policy.succeeded(completed);
                    });
                    at = Position::new(batch, at.done + size, at.restarts);
                    continue;
                }
                Err(Failure::MicroBatch(error)) => (error, false),
                Err(Failure::Batch(error)) => (error, true),
                Err(Failure::Final(error)) => {
                    // The policy learns of it, and nothing is tried again.
                    at.restarts = MAX_RESTARTS;
                    is_final = true;
                    (error, true)
                }
            };
            let Error::ResourceExhausted(found) = error else {
                return Err(error);
            };
            let (held, remedies) = work.held();
            let exhausted = attempt.exhausted(found, held, extent.cost, layers);
            let watched = attempt.watched.into_inner();
            self.regions.note(extent.cost, &watched);
            self.notify(|| EventKind::Exhausted(&exhausted));
            // An asynchronous fault surfaces here, and nothing is retried on a lost device.
            recover(&self.device)?;
            let failure = Failed::new(size, &exhausted)
                .passing(is_passing(&exhausted))
                .regions(self.regions.of(recomputes));
            let Some(to) = self.next_size(&mut at, extent, &failure, is_lost) else {
                // A sample whose earlier batches were lost may fit.
                return Err(ended(exhausted, is_final, remedies, memory.as_ref()));
            };
            let event = Event::Retried {
                samples: at.done..at.done + size,
                to,
                phase: exhausted.phase,
                cause: exhausted.cause,
            };
            tracing::warn!(step = self.step, error = %exhausted, "{event}");
            self.happened(event, &mut processed.events);
            processed.retries += 1;
            processed.samples_retried += size;
            at.attempt += 1;
            match to {
                _ if at.must_recompute && !recomputes => at.below = usize::MAX,
                to if to == size => at.again = Some(size),
                _ => at.below = size,
            }
            if is_lost {
                self.restart(&mut at, processed);
            }
        }
        self.note_way(&batch, || began.elapsed())
    }

    /// The seed of this rank.
    pub(super) fn base_seed(&self) -> u64 {
        match self.rank {
            None | Some(0) => self.seed,
            Some(rank) => mix(self.seed ^ mix(rank as u64)),
        }
    }

    /// Chooses the size after a failure, and tells the policy if it is to be smaller; `None` if the failure is final. A failure with
    /// regions kept is not, if they can be recomputed.
    fn next_size(
        &mut self,
        at: &mut Position,
        failed: Extent,
        failure: &Failed<'_>,
        is_lost: bool,
    ) -> Option<usize> {
        let size = failed.samples;
        let is_first = at.attempt == 0 && at.restarts == 0;
        let proven = self.regions.proven_mut(failure.regions);
        let to = if is_first && proven.may_pass(failed.cost, failure.exhausted) {
            size
        } else {
            proven.retract(failed.cost);
            self.policy.failed(failure);
            let to = self.size(at);
            let may_recompute = self.way == Recompute::Auto && failure.regions == Regions::Kept;
            if may_recompute && (to >= size || self.policy.recomputes()) {
                at.must_recompute = true;
                // Not a choice of the policy's, so what failed would be tried in vain again and again.
                self.regions.must_recompute |= !self.policy.recomputes();
                self.size(at)
            } else {
                Some(to).filter(|to| *to < size)?
            }
        };
        (!is_lost || at.restarts < MAX_RESTARTS).then_some(to)
    }

    /// Reports whether marked regions are recomputed, if that has changed.
    fn note_regions(&mut self, recomputes: bool, size: usize, events: &mut Vec<Event>) {
        let before = self.regions.last.replace((recomputes, size));
        let changed = before.filter(|(before, _)| *before != recomputes);
        if let Some((_, from)) = changed {
            let event = match recomputes {
                true => Event::Recomputing { from, to: size },
                false => Event::Keeping { from, to: size },
            };
            tracing::info!(step = self.step, "{event}");
            self.happened(event, events);
        }
    }

    /// Whether the next micro-batch recomputes marked regions.
    fn recomputes(&self, at: &Position) -> bool {
        match self.way {
            Recompute::Never => false,
            Recompute::Always => true,
            Recompute::Auto | Recompute::Measured => {
                at.must_recompute || self.regions.must_recompute || self.policy.recomputes()
            }
        }
    }

    /// Begins the batch again after its accumulated gradients were lost.
    fn restart<T>(&mut self, at: &mut Position, processed: &mut Processed<T>) {
        let event = Event::Restarted { lost: at.done };
        tracing::warn!(step = self.step, "{event}");
        self.happened(event, &mut processed.events);
        processed.samples_retried += at.done;
        processed.results.clear();
        processed.sizes.clear();
        *at = Position::new(at.batch, 0, at.restarts + 1);
        self.policy.begin(&at.batch);
    }

    /// Returns the policy's size for what remains.
    fn size(&self, at: &Position) -> usize {
        let remaining = at.batch.samples - at.done;
        self.policy.size(remaining).clamp(1, remaining)
    }

    /// Lets the policy learn something, and reports whether that changes its size. It is asked about the same number of samples
    /// before and after, so that the smaller end of a batch is not a change.
    fn note_change(
        &mut self,
        at: &Position,
        events: &mut Vec<Event>,
        learn: impl FnOnce(&mut Self),
    ) {
        let from = self.size(at);
        learn(self);
        let to = self.size(at);
        if from == to {
            return;
        }
        let event = match from < to {
            true => Event::Grown { from, to },
            false => Event::Shrunk { from, to },
        };
        tracing::info!(step = self.step, "{event}");
        self.happened(event, events);
    }
}
