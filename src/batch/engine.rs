use candle_core::Device;

use super::attempt::Attempt;
use super::event::Event;
use super::exhaustion::{self, Circumstances, complete, conclude};
use super::history::{Proven, Timings};
use super::micro_batch::MicroBatch;
use super::observer::TrainingEvent;
use super::observers::Observers;
use super::outcome::{Failure, Outcome};
use super::plan::Reason;
use super::policy::{BatchPolicy, Extent, Failed};
use crate::error::{Cause, Error, Holding, Remedy, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, recover, unmask};

/// Number of times that a batch is restarted after its accumulated gradients were lost; each restart costs a whole batch.
const MAX_RESTARTS: usize = 3;

/// Cuts batches by a policy, runs the micro-batches, and retries those that did not fit: the one loop under trainers' steps,
/// evaluation and `process_batches`.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) policy: Box<dyn BatchPolicy>,
    pub(crate) memory: Option<DeviceMemory>,
    pub(crate) device: Device,
    pub(crate) seed: u64,
    pub(crate) observers: Observers,
    proven: Proven,
    timings: Timings,
}

/// The work that an [`Engine`] cuts into micro-batches.
pub(crate) trait Work {
    /// Processes one micro-batch, or leaves everything as it was.
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure>;

    /// Returns the memory held by what is trained.
    fn held(&self) -> Vec<Holding> {
        Vec::new()
    }

    /// Returns what would reduce that.
    fn remedies(&self) -> Vec<Remedy> {
        Vec::new()
    }
}

/// The progress of a batch.
struct Position {
    step: u64,
    batch: Extent,
    done: usize,
    attempt: usize,
    restarts: usize,
    /// The size to try once more.
    again: Option<usize>,
    /// Further attempts at this position must be smaller.
    below: usize,
}

impl Position {
    fn begin(&mut self, done: usize) {
        (self.done, self.attempt) = (done, 0);
        (self.again, self.below) = (None, usize::MAX);
    }

    fn remaining(&self) -> usize {
        self.batch.samples - self.done
    }
}

impl Engine {
    pub(crate) fn new(policy: Box<dyn BatchPolicy>, device: Device, observers: Observers) -> Self {
        Self {
            policy,
            memory: None,
            device,
            seed: 0,
            observers,
            proven: Proven::default(),
            timings: Timings::default(),
        }
    }

    /// Follows this memory's limit from now on.
    pub(crate) fn use_memory(&mut self, memory: &DeviceMemory) {
        self.policy.prepare(&memory.surroundings());
        self.memory = Some(memory.clone());
    }

    /// Runs `work` for runs of samples until each sample of the batch was processed exactly once.
    ///
    /// It ends: at one position each failure but one makes the size smaller, each success moves the position on, and restarts
    /// are bounded.
    pub(crate) fn run(
        &mut self,
        step: u64,
        batch: Extent,
        work: &mut impl Work,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut at = Position {
            step,
            batch,
            done: 0,
            attempt: 0,
            restarts: 0,
            again: None,
            below: usize::MAX,
        };
        let memory = self.memory.clone();
        self.policy.begin(&batch);
        while at.done < batch.samples {
            // Two trainers on one memory take turns, so that each knows what is in use.
            let _turn = memory.as_ref().map(DeviceMemory::turn);
            self.prepare(&at, &mut outcome);
            let size = match at.again.take() {
                Some(size) => size,
                None => self.size(at.remaining()).min(at.below - 1),
            };
            let micro = MicroBatch {
                step,
                index: outcome.sizes.len(),
                samples: at.done..at.done + size,
                attempt: at.attempt,
                base_seed: self.seed,
            };
            let extent = batch.part(size);
            let need = self.proven.need(extent.cost);
            let attempt = Attempt::new(micro, memory.as_ref(), &self.observers, need);
            let stopwatch = self.timings.start(&self.device, &*self.policy);
            match work.micro_batch(&attempt) {
                Ok(()) => {
                    self.timings.stop(stopwatch, extent);
                    let completed = attempt.completed();
                    self.observers.notify(&TrainingEvent::MicroBatchEnded {
                        task: self.observers.task,
                        micro: &attempt.micro,
                        completed: &completed,
                    });
                    self.proven.note(extent.cost, &completed);
                    outcome.sizes.push(size);
                    self.note_change(&at, &mut outcome, |engine| {
                        engine.timings.deliver(&mut *engine.policy);
                        engine.policy.succeeded(&completed);
                    });
                    at.begin(at.done + size);
                }
                Err(failure) => {
                    let (error, lost) = match failure {
                        Failure::MicroBatch(error) => (error, 0),
                        Failure::Batch(Error::WindowLost(lost)) => (lost.reason, at.done),
                        Failure::Batch(error) => (error, at.done),
                        Failure::Final(error) => return Err(unmask(error, &self.device)),
                    };
                    let Error::ResourceExhausted(mut exhausted) = error else {
                        return Err(unmask(error, &self.device));
                    };
                    let is_passing = complete(
                        &mut exhausted,
                        Circumstances {
                            memory: (attempt.memory.as_ref())
                                .map(|(memory, scope)| (*memory, scope)),
                            held: work.held(),
                            micro_batch: Some(exhaustion::Failed {
                                samples: attempt.micro.samples.clone(),
                                need: attempt.need,
                                plan: self.policy.plan(),
                            }),
                        },
                    );
                    drop(attempt);
                    let may_go_on =
                        self.failed(&mut at, &exhausted, is_passing, lost, &mut outcome)?;
                    if !may_go_on {
                        let remedies = work.remedies();
                        conclude(&mut exhausted, is_passing, memory.as_ref(), remedies);
                        return Err(Error::ResourceExhausted(exhausted));
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Makes the device ready and chooses the next attempt; `false` if there is none.
    fn failed(
        &mut self,
        at: &mut Position,
        exhausted: &ResourceExhausted,
        is_passing: bool,
        lost: usize,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let size = exhausted.micro_batch.unwrap_or(1);
        self.observers.notify(&TrainingEvent::Exhausted {
            task: self.observers.task,
            step: at.step,
            exhausted,
            plan: self.observers.plan(&*self.policy),
        });
        // An asynchronous fault surfaces here, and nothing is retried on a lost device.
        recover(&self.device)?;
        // A restarted batch has had its second attempt at this size.
        let may_pass = self.may_pass(at.batch.part(size).cost, exhausted.cause);
        let retries_same = at.attempt == 0 && at.restarts == 0 && may_pass;
        let to = if retries_same {
            size
        } else {
            let failed = Failed::new(size, exhausted).passing(is_passing);
            self.policy.failed(&failed);
            self.proven.retract(at.batch.part(size).cost);
            self.size(at.remaining())
        };
        let is_final = (!retries_same && to >= size) || (lost > 0 && at.restarts >= MAX_RESTARTS);
        if is_final {
            return Ok(false);
        }
        outcome.retries += 1;
        outcome.recomputed += size + lost;
        let event = Event::Retried {
            samples: at.done..at.done + size,
            to,
            phase: exhausted.phase,
            cause: exhausted.cause,
        };
        tracing::warn!(step = at.step, error = %exhausted, "{event}");
        self.happened(at.step, event, outcome);
        at.attempt += 1;
        match retries_same {
            true => at.again = Some(size),
            false => at.below = size,
        }
        if lost > 0 {
            let event = Event::Restarted { lost };
            tracing::warn!(step = at.step, "{event}");
            self.happened(at.step, event, outcome);
            outcome.sizes.clear();
            at.begin(0);
            at.restarts += 1;
            self.policy.begin(&at.batch);
        }
        Ok(true)
    }

    /// Whether a cost that did not fit may fit at a second attempt: one that has succeeded before, if a neighbour may have
    /// left or nothing is known; and any for which there is known to be room, if only it were in one piece.
    fn may_pass(&self, cost: usize, cause: Cause) -> bool {
        let is_proven = self.proven.holds(cost);
        match cause {
            Cause::Fragmented => is_proven || self.proven.is_measured(),
            Cause::Neighbour | Cause::Unknown => is_proven,
            _ => false,
        }
    }

    fn size(&self, remaining: usize) -> usize {
        self.policy.size(remaining).clamp(1, remaining)
    }

    /// Shows the policy the memory before a micro-batch begins.
    fn prepare(&mut self, at: &Position, outcome: &mut Outcome) {
        // Other processes' use takes asking the driver, so not before every micro-batch.
        let looks_around = at.done == 0 || at.attempt > 0;
        let now = self.memory.as_ref().map(|memory| match looks_around {
            true => {
                memory.maintain();
                memory.surroundings()
            }
            false => memory.reading(),
        });
        if let Some(now) = now {
            self.note_change(at, outcome, |engine| engine.policy.prepare(&now));
        }
    }

    /// Lets the policy learn something, and notes whether that changes its size. It is asked about the same number of samples
    /// before and after, so that the smaller end of a batch is not a change.
    fn note_change(&mut self, at: &Position, outcome: &mut Outcome, learn: impl FnOnce(&mut Self)) {
        let from = self.size(at.remaining());
        learn(self);
        let to = self.size(at.remaining());
        if from == to {
            return;
        }
        let event = match self.policy.plan().map(|plan| plan.reason) {
            Some(Reason::Speed | Reason::Timing) => Event::Paced { from, to },
            _ if from < to => Event::Grown { from, to },
            _ => Event::Shrunk { from, to },
        };
        tracing::info!(step = at.step, "{event}");
        self.happened(at.step, event, outcome);
    }

    pub(crate) fn happened(&self, step: u64, event: Event, outcome: &mut Outcome) {
        self.observers.notify(&TrainingEvent::Happened {
            task: self.observers.task,
            step,
            event: &event,
            plan: self.observers.plan(&*self.policy),
        });
        outcome.events.push(event);
    }
}
