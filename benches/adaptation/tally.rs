//! The cost of a run.

use crate::curves::Device;

/// One step of a run.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub computed: usize,
    pub finished: usize,
    pub failures: usize,
    /// The largest micro-batch that succeeded, in samples.
    pub largest: usize,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    computed: usize,
    finished: usize,
    failures: usize,
    /// In each step, the largest micro-batch divided by the largest that could have been used.
    used: Vec<f64>,
    /// Whether each micro-batch is an update of its own, which changes the batch size.
    is_new_batch: bool,
    has_crashed: bool,
}

impl Tally {
    /// For a method that makes an update from each micro-batch, and so changes the batch size.
    pub fn new_batch() -> Self {
        Self {
            is_new_batch: true,
            ..Self::default()
        }
    }

    pub fn push(&mut self, step: Step, device: &Device) {
        self.computed += step.computed;
        self.finished += step.finished;
        self.failures += step.failures;
        let (batch, room) = (device.curve.batch, device.room().max(1));
        let best = match self.is_new_batch {
            true => batch.min(room),
            // The batch in as few parts as can be, none larger than it must be.
            false => batch.div_ceil(batch.div_ceil(room)),
        };
        self.used.push(step.largest as f64 / best as f64);
    }

    /// Everything was discarded.
    pub fn restart(&mut self) {
        self.used.clear();
        self.finished = 0;
    }

    /// Adds what was computed and failed, if that is not counted by steps.
    pub fn charge(&mut self, computed: usize, failures: usize) {
        self.computed += computed;
        self.failures += failures;
    }

    /// The run ended early: nothing is used from here on.
    pub fn crash(&mut self, steps: usize) {
        self.has_crashed = true;
        self.used.resize(steps, 0.);
    }

    pub fn failures(&self) -> f64 {
        self.failures as f64
    }

    /// Samples computed for each that was needed; infinite for a run that ended early.
    pub fn work(&self) -> f64 {
        match self.has_crashed {
            true => f64::INFINITY,
            false => self.computed as f64 / self.finished as f64,
        }
    }

    /// The settled size divided by the best one: the mean over the last ten steps.
    pub fn utilisation(&self) -> f64 {
        let last = self.used.iter().rev().take(10);
        last.clone().sum::<f64>() / last.count().max(1) as f64
    }

    /// Steps from `from` on until at least 0.95 of what could be used is used; infinite if never.
    pub fn regrow_steps(&self, from: usize) -> f64 {
        let after = self.used.iter().skip(from);
        match after.clone().any(|used| *used >= 0.95) {
            true => after.take_while(|used| **used < 0.95).count() as f64,
            false => f64::INFINITY,
        }
    }
}
