use std::cell::Cell;

use super::measured::Measured;
use super::micro_batch::MicroBatch;
use super::observers::Observers;
use super::phase::run_phase;
use super::policy::Completed;
use super::slices::Batch;
use crate::error::{Error, Phase, Result};

/// The work of a micro-batch in progress.
pub(crate) struct Attempt<'a> {
    pub(crate) micro: MicroBatch,
    pub(crate) memory: Measured<'a>,
    pub(super) observers: &'a Observers,
    /// The highest use until the end of the forward pass, in bytes.
    pub(super) forward_peak: Cell<Option<u64>>,
}

impl Attempt<'_> {
    /// Cuts the samples out of the batch and calls `f` with them.
    pub(crate) fn forward<'b, B: Batch + ?Sized, T>(
        &self,
        batch: &'b B,
        f: &mut impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<T> {
        let samples = self.micro.samples.clone();
        let slice = self.run(Phase::Transfer, || batch.slice(samples))?;
        self.run(Phase::Forward, || f(slice, &self.micro))
    }

    /// Notes the peak of the forward pass and fails if it went over a soft limit.
    pub(crate) fn check_forward(&self) -> Result<()> {
        self.forward_peak.set(self.memory.peak());
        self.memory.check(Phase::Forward)
    }

    fn run<T, E: Into<Error>>(
        &self,
        phase: Phase,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T> {
        self.observe(phase, || run_phase(phase, work))
    }

    /// Reports a phase that names itself in an exhaustion.
    pub(crate) fn observe<T>(&self, phase: Phase, work: impl FnOnce() -> Result<T>) -> Result<T> {
        (self.observers).phase(self.micro.step, phase, &self.memory, work)
    }

    pub(super) fn completed(&self) -> Completed {
        let mut completed = Completed::new(self.micro.samples.len());
        (completed.before, completed.peak) = (self.memory.start(), self.memory.peak());
        completed.limit = self.memory.limit();
        completed.forward_peak = self.forward_peak.get();
        completed
    }
}
