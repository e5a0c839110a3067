//! The one loop that cuts a batch, retries what did not fit, and counts.

use std::cell::Cell;
use std::ops::Range;
use std::time::Instant;

use candle_core::Device;

use super::{
    Attempt, BatchPolicy, Completed, Event, Extent, Failed, MicroBatch, Moment, Observers, Reason,
};
use crate::error::{Cause, Error, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, recover, synchronize, unmask};

/// How often one batch is begun again because what it had accumulated was lost; each time costs a whole batch.
const MOST_RESTARTS: usize = 3;

/// What one micro-batch's work ended in, if it failed.
pub(crate) enum Failure {
    /// Nothing of this micro-batch was kept, everything before it was.
    MicroBatch(Error),
    /// What was finished before was lost too.
    Everything(Error),
    /// What the micro-batch had changed could not be undone, so nothing may be tried again, whatever the error is.
    Final(Error),
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::MicroBatch(error) | Self::Everything(error) | Self::Final(error) => error,
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::MicroBatch(error.into())
    }
}

/// What a whole batch took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// The finished micro-batches' sizes, in order.
    pub(crate) sizes: Vec<usize>,
    pub(crate) retries: usize,
    /// Samples whose work was thrown away and done again.
    pub(crate) recomputed: usize,
    pub(crate) events: Vec<Event>,
}

impl Outcome {
    pub(crate) fn extend(&mut self, other: Self) {
        self.sizes.extend(other.sizes);
        self.retries += other.retries;
        self.recomputed += other.recomputed;
        self.events.extend(other.events);
    }
}

/// Cuts batches by a policy and works through them.
pub(crate) struct Drive<'a> {
    pub(crate) policy: &'a mut dyn BatchPolicy,
    pub(crate) memory: Option<&'a DeviceMemory>,
    pub(crate) device: &'a Device,
    pub(crate) step: u64,
    pub(crate) base_seed: u64,
    pub(crate) proven: &'a mut Proven,
    pub(crate) observers: &'a Observers,
}

/// The largest micro-batch that has ever gone well: only up to its size a failure may be a passing one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Proven {
    size: usize,
    /// What it took, in bytes, where that was measured.
    took: Option<u64>,
}

impl Proven {
    fn note(&mut self, completed: &Completed) {
        if completed.size >= self.size {
            let took = completed.peak.zip(completed.before);
            self.size = completed.size;
            self.took = took.map(|(peak, before)| peak.saturating_sub(before));
        }
    }

    /// What `size` samples take, if memory grows with the samples.
    fn need(&self, size: usize) -> Option<u64> {
        Some((self.took? as f64 * (size as f64 / self.size as f64)) as u64)
    }
}

impl Drive<'_> {
    /// Calls `work` for runs of samples until each of `total` was finished exactly once.
    ///
    /// It ends: at one position the size falls strictly with each failure but one, each success moves the position on, and
    /// starting over is bounded.
    pub(crate) fn run(
        &mut self,
        batch: Extent,
        mut work: impl FnMut(&Attempt<'_>) -> Result<(), Failure>,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let total = batch.samples;
        self.policy.begin(&batch);
        let (mut done, mut attempt, mut restarts) = (0, 0, 0);
        // The size to use once more as it is, and the one that no further attempt at this position may reach.
        let (mut again, mut below) = (None, usize::MAX);
        while done < total {
            let remaining = total - done;
            // What others have left of the device takes asking the driver, so not before every micro-batch.
            let looks_around = done == 0 || attempt > 0;
            self.prepare(remaining, looks_around, &mut outcome);
            let size = match again.take() {
                Some(size) => size,
                None => self.size(remaining)?.min(below - 1),
            };
            let current = self.attempt(done..done + size, outcome.sizes.len(), attempt);
            let began = self.clock()?;
            let (error, lost) = match work(&current) {
                Ok(()) => {
                    let elapsed = began.zip(self.clock()?).map(|(began, now)| now - began);
                    let completed = current.completed(elapsed);
                    self.observers.tell(&Moment::MicroBatchEnded {
                        task: self.observers.task,
                        micro: &current.micro,
                        completed: &completed,
                    });
                    self.proven.note(&completed);
                    self.finish(&completed, remaining, &mut outcome);
                    done += size;
                    (attempt, below) = (0, usize::MAX);
                    continue;
                }
                Err(Failure::MicroBatch(error)) => (error, 0),
                Err(Failure::Everything(Error::WindowLost(lost))) => (lost.reason, done),
                Err(Failure::Everything(error)) => (error, done),
                Err(Failure::Final(error)) => return Err(unmask(error, self.device)),
            };
            let mut exhausted = self.exhausted(error, &current)?;
            drop(current);
            self.tell_exhausted(&exhausted);
            // An asynchronous fault surfaces here, and nothing is retried on a lost device.
            recover(self.device)?;

            // A batch that was begun again has had its second chance at this size.
            let retry_same = attempt == 0 && restarts == 0 && self.may_pass(size, exhausted.cause);
            let to = if retry_same {
                again = Some(size);
                size
            } else {
                self.policy.failed(&Failed::new(size, &exhausted));
                self.size(remaining)?
            };
            if !retry_same && to >= size {
                // What others took may be given back, so that is no verdict on the sample.
                if size == 1 && exhausted.cause != Cause::Neighbour {
                    exhausted.cause = Cause::NeverFits;
                }
                return Err(self.give_up(exhausted));
            }
            if lost > 0 && restarts >= MOST_RESTARTS {
                return Err(self.give_up(exhausted));
            }
            outcome.retries += 1;
            outcome.recomputed += size + lost;
            let event = Event::Retried {
                samples: done..done + size,
                to,
                phase: exhausted.phase,
                cause: exhausted.cause,
            };
            tracing::warn!(step = self.step, error = %exhausted, "{event}");
            self.happened(event, &mut outcome);
            attempt += 1;
            if !retry_same {
                below = size;
            }
            if lost > 0 {
                let event = Event::Restarted { lost };
                tracing::warn!(step = self.step, "{event}");
                self.happened(event, &mut outcome);
                outcome.sizes.clear();
                (done, attempt, restarts) = (0, 0, restarts + 1);
                (again, below) = (None, usize::MAX);
            }
        }
        Ok(outcome)
    }

    /// Whether a size that did not fit may fit when it is tried again as it is: a size that has gone well where a neighbour
    /// may have left or nothing speaks against it, and any size of which there is known to be room, if only it lay in one
    /// piece.
    fn may_pass(&self, size: usize, cause: Cause) -> bool {
        let is_proven = size <= self.proven.size;
        match cause {
            Cause::Fragmented => is_proven || self.proven.took.is_some(),
            Cause::Neighbour | Cause::Unknown => is_proven,
            _ => false,
        }
    }

    fn size(&self, remaining: usize) -> Result<usize> {
        Ok(self.policy.size(remaining).clamp(1, remaining.max(1)))
    }

    /// The time at which all that was asked of the device is done. Where that takes waiting for it, only if the policy wants
    /// to know.
    fn clock(&self) -> Result<Option<Instant>> {
        if !self.device.is_cpu() {
            match self.policy.wants_time() {
                true => synchronize(self.device)?,
                false => return Ok(None),
            }
        }
        Ok(Some(Instant::now()))
    }

    fn attempt(&self, samples: Range<usize>, index: usize, attempt: usize) -> Attempt<'_> {
        Attempt {
            need: self.proven.need(samples.len()),
            micro: MicroBatch {
                step: self.step,
                index,
                samples,
                attempt,
                base_seed: self.base_seed,
            },
            memory: self.memory.map(|memory| (memory, memory.peak_scope())),
            forward_peak: Cell::new(None),
            observers: self.observers,
        }
    }

    /// Lets the policy see what there is room for before a micro-batch begins.
    fn prepare(&mut self, remaining: usize, looks_around: bool, outcome: &mut Outcome) {
        if let Some(memory) = self.memory {
            memory.maintain();
            let now = match looks_around {
                true => memory.surroundings(),
                false => memory.reading(),
            };
            self.note_change(remaining, outcome, |policy| policy.prepare(&now));
        }
    }

    fn finish(&mut self, completed: &Completed, remaining: usize, outcome: &mut Outcome) {
        outcome.sizes.push(completed.size);
        self.note_change(remaining, outcome, |policy| policy.succeeded(completed));
    }

    /// Tells the policy something, and notes whether that changes its size. It is asked with the same samples left, so that
    /// a batch's smaller end is no change.
    fn note_change(
        &mut self,
        remaining: usize,
        outcome: &mut Outcome,
        tell: impl FnOnce(&mut dyn BatchPolicy),
    ) {
        let from = self.policy.size(remaining);
        tell(&mut *self.policy);
        let to = self.policy.size(remaining);
        if from == to {
            return;
        }
        let event = match self.policy.plan().map(|plan| plan.reason) {
            Some(Reason::Speed | Reason::Timing) => Event::Paced { from, to },
            _ if from < to => Event::Grown { from, to },
            _ => Event::Shrunk { from, to },
        };
        tracing::info!(step = self.step, "{event}");
        self.happened(event, outcome);
    }

    fn happened(&self, event: Event, outcome: &mut Outcome) {
        self.observers.tell(&Moment::Happened {
            task: self.observers.task,
            step: self.step,
            event: &event,
            plan: self.observers.plan(&*self.policy),
        });
        outcome.events.push(event);
    }

    fn tell_exhausted(&self, exhausted: &ResourceExhausted) {
        self.observers.tell(&Moment::Exhausted {
            task: self.observers.task,
            step: self.step,
            exhausted,
            plan: self.observers.plan(&*self.policy),
        });
    }

    /// Nothing is tried any more, so there is time to ask who else holds memory.
    fn give_up(&self, mut exhausted: Box<ResourceExhausted>) -> Error {
        if let Some(memory) = self.memory {
            memory.name_neighbours(&mut exhausted);
        }
        Error::ResourceExhausted(exhausted)
    }

    /// The exhaustion with all that is known about it; any other error goes back as it is, or as the device fault behind
    /// it.
    fn exhausted(&self, error: Error, attempt: &Attempt<'_>) -> Result<Box<ResourceExhausted>> {
        match error {
            Error::ResourceExhausted(mut exhausted) => {
                attempt.describe(self.policy.plan(), &mut exhausted);
                Ok(exhausted)
            }
            other => Err(unmask(other, self.device)),
        }
    }
}
