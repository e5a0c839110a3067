//! What is known of a piece of work: a micro-batch, an update, or a step of a loop of one's own.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::stats::Stats;
use crate::batch::Task;
use crate::error::Holding;

/// The work that a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Work {
    /// The purpose of the batch.
    pub task: Task,
    /// The batch's number within its task, counted from 0.
    pub step: u64,
    /// Samples of the micro-batch; 0 for an update.
    pub samples: usize,
}

impl Work {
    /// A micro-batch of `samples` samples, or an update with 0.
    pub(crate) fn new((task, step, samples): (Task, u64, usize)) -> Self {
        Self {
            task,
            step,
            samples,
        }
    }

    fn is_in_the_step_of(&self, other: &Self) -> bool {
        (self.task, self.step) == (other.task, other.step)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    /// `None` in a loop of one's own.
    pub(super) work: Option<Work>,
    /// Whose it is: two trainers count their batches from 0 each.
    engine: Option<u64>,
    /// Nobody has said when it begins.
    pub(super) is_guessed: bool,
    pub(super) ledger: Ledger,
    pub(super) stats: Stats,
    /// What is known to be held for the training.
    pub(super) held: Vec<Holding>,
    /// Whether the use of memory is known.
    pub(super) is_measured: bool,
}

impl Unit {
    /// Begins a piece of work, of the engine with this number.
    pub(super) fn begin(
        &mut self,
        work: Option<(u64, Work)>,
        held: Vec<Holding>,
        now: Option<u64>,
    ) {
        (self.engine, self.work) = work.unzip();
        (self.held, self.is_measured) = (held, now.is_some());
        self.is_guessed = false;
        self.ledger.begin(now.unwrap_or(0));
        self.stats.clear();
    }

    /// Whether it tells nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_none() && self.stats.is_empty()
    }

    /// Whether somebody has said that it is a step.
    pub(super) fn is_said(&self) -> bool {
        !self.is_guessed && !self.is_empty()
    }

    /// Whether a report of the step is about this rather than the `other` one.
    pub(super) fn outdoes(&self, other: &Self) -> bool {
        if self.is_guessed && other.is_said() {
            return false;
        }
        let both = self.work.zip(other.work);
        let is_same_step = self.engine == other.engine
            && both.is_some_and(|(own, other)| own.is_in_the_step_of(&other));
        let is_higher = self.ledger.peak() > other.ledger.peak();
        // Without counts it is the last that ran the layers.
        let says_more = !self.is_measured && !self.stats.is_empty();
        !is_same_step || is_higher || says_more
    }
}
