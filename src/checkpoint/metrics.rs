//! Numbers that go with a checkpoint. One that was given goes with the next checkpoint that is written, however many attempts that takes.

use std::collections::BTreeMap;

use crate::train::StepReport;

type Numbers = BTreeMap<String, f64>;

/// The metric that a report brings.
const LOSS: &str = "loss";

/// Finite numbers that are saved with checkpoints.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// For the next checkpoint.
    given: Numbers,
    /// Those of them that the checkpoint has that is being written.
    taken: Numbers,
    /// All of the last checkpoint that was begun, and its step.
    last: (u64, Numbers),
}

impl Metrics {
    pub(super) fn give(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.given.insert(name.to_owned(), value);
        }
    }

    /// Those of a checkpoint of this step. One that is saved again keeps what it had.
    pub(super) fn of(&self, step: u64, loss: Option<f64>) -> Numbers {
        let (last, numbers) = &self.last;
        let mut all = match *last == step {
            true => numbers.clone(),
            false => Numbers::new(),
        };
        let loss = loss.filter(|loss| loss.is_finite());
        all.extend(loss.map(|loss| (LOSS.to_owned(), loss)));
        all.extend(self.given.clone());
        all
    }

    /// A checkpoint with these was begun.
    pub(super) fn begun(&mut self, step: u64, all: Numbers) {
        self.taken = std::mem::take(&mut self.given);
        self.last = (step, all);
    }

    /// The run continues from a checkpoint with these.
    pub(super) fn resumed(&mut self, step: u64, all: &Numbers) {
        self.last = (step, all.clone());
    }

    pub(super) fn succeeded(&mut self) {
        self.taken.clear();
    }

    /// What the caller gave goes along with the next attempt.
    pub(super) fn failed(&mut self) {
        let newer = std::mem::take(&mut self.given);
        self.given = std::mem::take(&mut self.taken);
        self.given.extend(newer);
    }
}

/// The loss to save. Where it cannot be read, the trainer's state, which all ranks read together, cannot be either and is the error.
pub(super) fn loss(report: &StepReport) -> Option<f64> {
    let loss = report.loss.read();
    let loss = loss.inspect_err(|error| tracing::warn!(%error, "a loss cannot be read"));
    loss.ok()
}
