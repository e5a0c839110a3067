//! The one loop that cuts a batch, retries what did not fit, and counts.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use bytesize::ByteSize;
use candle_core::Device;

use super::{BatchPolicy, Completed, Failed, MicroBatch};
use crate::error::{Cause, Error, Phase, PolicyError, Remedy, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, PeakScope};

/// How often one batch is begun again because what it had accumulated was lost; each time costs a whole batch.
const MOST_RESTARTS: usize = 3;

/// Something that happened to the size of the micro-batches, or because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The policy went to a larger size.
    Grown {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from here on.
        to: usize,
    },
    /// The policy went to a smaller size after a micro-batch that was finished but went over a soft limit: its work was kept.
    Shrunk {
        /// Samples in a micro-batch before.
        from: usize,
        /// Samples in a micro-batch from here on.
        to: usize,
    },
    /// A micro-batch did not fit; its samples were computed again.
    Retried {
        /// The samples that failed, as positions in the batch.
        samples: Range<usize>,
        /// The size that is tried next; the same where the cause may have passed.
        to: usize,
        /// In which phase it failed.
        phase: Option<Phase>,
        /// Why it failed.
        cause: Cause,
    },
    /// The accumulated gradients were lost, so the batch was begun again.
    Restarted {
        /// The samples that had been finished.
        lost: usize,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grown { from, to } => write!(f, "micro-batch {from} → {to}: there is room"),
            Self::Shrunk { from, to } => write!(f, "micro-batch {from} → {to}: over the limit"),
            Self::Retried {
                samples,
                to,
                phase,
                cause,
            } => {
                write!(f, "micro-batch {} → {to}: ", samples.len())?;
                match phase {
                    Some(phase) => write!(f, "out of memory in {phase}, {cause}"),
                    None => write!(f, "out of memory, {cause}"),
                }
            }
            Self::Restarted { lost } => write!(f, "begun again: {lost} finished samples lost"),
        }
    }
}

/// What one micro-batch's work ended in, if it failed.
pub(crate) enum Failure {
    /// Nothing of this micro-batch was kept, everything before it was.
    MicroBatch(Error),
    /// What was finished before was lost too.
    Everything(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::MicroBatch(error.into())
    }
}

/// A micro-batch's work while it runs.
pub(crate) struct Attempt<'a> {
    pub(crate) micro: MicroBatch,
    memory: Option<(&'a DeviceMemory, PeakScope)>,
}

impl Attempt<'_> {
    /// Ends the attempt if memory went over its soft limit: called where going on would take more.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.memory {
            Some((memory, scope)) => Ok(memory.check(scope).map_err(Error::ResourceExhausted)?),
            None => Ok(()),
        }
    }

    fn completed(&self, began: Instant) -> Completed {
        Completed {
            size: self.micro.samples.len(),
            before: self.memory.as_ref().and_then(|(_, scope)| scope.start()),
            peak: self.memory.as_ref().and_then(|(_, scope)| scope.peak()),
            limit: self.memory.as_ref().and_then(|(memory, _)| memory.limit()),
            elapsed: began.elapsed(),
        }
    }

    /// Adds what the error itself cannot know.
    fn describe(&self, exhausted: &mut ResourceExhausted) {
        let samples = self.micro.samples.clone();
        if let Some((memory, scope)) = &self.memory {
            memory.describe(scope, exhausted);
        }
        if samples.len() > 1 {
            let half = samples.len() / 2;
            let own = self.memory.as_ref().and_then(|(_, scope)| {
                Some(exhausted.bytes.peak?.saturating_sub(scope.start()?) / 2)
            });
            let advice = format!("a micro-batch of {half}");
            exhausted.remedies.push(Remedy::new(advice, own));
        }
        match (exhausted.bytes.peak, exhausted.bytes.limit) {
            (Some(peak), Some(limit)) if peak > limit => {
                let advice = format!("a limit of at least {}", ByteSize(peak));
                exhausted.remedies.push(Remedy::new(advice, None));
            }
            _ => {}
        }
        exhausted.remedies.push(Remedy::new(
            "shorter samples, fewer trained parameters or a smaller model",
            None,
        ));
        exhausted.micro_batch = Some(samples.len());
        exhausted.samples = Some(samples);
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
    /// The largest size that has ever gone well: only up to it a failure may be a passing one.
    pub(crate) proven: &'a mut usize,
}

impl Drive<'_> {
    /// Calls `work` for runs of samples until each of `total` was finished exactly once.
    ///
    /// It ends: at one position the size falls strictly with each failure but one, each success moves the position on, and
    /// starting over is bounded.
    pub(crate) fn run(
        &mut self,
        total: usize,
        mut work: impl FnMut(&Attempt<'_>) -> Result<(), Failure>,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let (mut done, mut attempt, mut restarts) = (0, 0, 0);
        // The size to use once more as it is.
        let mut again = None;
        while done < total {
            let remaining = total - done;
            let size = match again.take() {
                Some(size) => size,
                None => self.size(remaining)?,
            };
            let current = self.attempt(done..done + size, outcome.sizes.len(), attempt);
            let began = Instant::now();
            let (error, lost) = match work(&current) {
                Ok(()) => {
                    self.finish(&current.completed(began), remaining, &mut outcome);
                    done += size;
                    attempt = 0;
                    *self.proven = size.max(*self.proven);
                    continue;
                }
                Err(Failure::MicroBatch(error)) => (error, 0),
                Err(Failure::Everything(Error::WindowLost(lost))) => (lost.reason, done),
                Err(Failure::Everything(error)) => (error, done),
            };
            let mut exhausted = self.exhausted(error, &current)?;
            drop(current);
            self.settle()?;

            let retry_same = attempt == 0 && size <= *self.proven && exhausted.may_be_transient();
            let to = if retry_same {
                again = Some(size);
                size
            } else {
                self.policy.failed(&Failed {
                    size,
                    exhausted: &exhausted,
                });
                self.size(remaining)?
            };
            if !retry_same && to >= size || restarts >= MOST_RESTARTS {
                if size == 1 {
                    exhausted.cause = Cause::NeverFits;
                }
                return Err(Error::ResourceExhausted(exhausted));
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
            outcome.events.push(event);
            attempt += 1;
            if lost > 0 {
                let event = Event::Restarted { lost };
                tracing::warn!(step = self.step, "{event}");
                outcome.events.push(event);
                outcome.sizes.clear();
                (done, attempt, restarts, again) = (0, 0, restarts + 1, None);
            }
        }
        Ok(outcome)
    }

    fn size(&self, remaining: usize) -> Result<usize> {
        match self.policy.size(remaining) {
            size if (1..=remaining).contains(&size) => Ok(size),
            size => Err(PolicyError::Size { size, remaining }.into()),
        }
    }

    fn attempt(&self, samples: Range<usize>, index: usize, attempt: usize) -> Attempt<'_> {
        Attempt {
            micro: MicroBatch {
                step: self.step,
                index,
                samples,
                attempt,
                base_seed: self.base_seed,
            },
            memory: self.memory.map(|memory| (memory, memory.peak_scope())),
        }
    }

    fn finish(&mut self, completed: &Completed, remaining: usize, outcome: &mut Outcome) {
        outcome.sizes.push(completed.size);
        // Asked with what was left then, so that a batch's smaller end is no change of size.
        let from = self.policy.size(remaining);
        self.policy.succeeded(completed);
        let to = self.policy.size(remaining);
        let event = match from.cmp(&to) {
            std::cmp::Ordering::Less => Event::Grown { from, to },
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => Event::Shrunk { from, to },
        };
        tracing::info!(step = self.step, "{event}");
        outcome.events.push(event);
    }

    /// The exhaustion with all that is known about it; any other error goes back as it is.
    fn exhausted(&self, error: Error, attempt: &Attempt<'_>) -> Result<Box<ResourceExhausted>> {
        match error {
            Error::ResourceExhausted(mut exhausted) => {
                attempt.describe(&mut exhausted);
                Ok(exhausted)
            }
            other => Err(other),
        }
    }

    /// Waits for the device after a failure: an asynchronous fault surfaces here, and nothing is retried on a lost device.
    fn settle(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }
}
