use std::cell::Cell;

use super::micro_batch::MicroBatch;
use super::observers::Observers;
use super::phase::run_phase;
use super::policy::Completed;
use crate::error::{Error, Phase, Result};
use crate::memory::{DeviceMemory, PeakScope};

/// The work of a micro-batch in progress.
pub(crate) struct Attempt<'a> {
    pub(crate) micro: MicroBatch,
    pub(super) memory: Option<(&'a DeviceMemory, PeakScope)>,
    pub(super) observers: &'a Observers,
    /// Bytes that a micro-batch of this size is known to need.
    pub(super) need: Option<u64>,
    /// The highest use until the end of the forward pass, in bytes.
    forward_peak: Cell<Option<u64>>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        micro: MicroBatch,
        memory: Option<&'a DeviceMemory>,
        observers: &'a Observers,
        need: Option<u64>,
    ) -> Self {
        Self {
            micro,
            memory: memory.map(|memory| (memory, memory.peak_scope())),
            observers,
            need,
            forward_peak: Cell::new(None),
        }
    }

    /// Fails if memory use went over its soft limit. Called before work that would use more.
    pub(crate) fn check(&self, phase: Phase) -> Result<()> {
        let Some((memory, scope)) = &self.memory else {
            return Ok(());
        };
        let checked = memory.check(scope).map_err(Error::ResourceExhausted);
        checked.map_err(|error| error.in_phase(phase))
    }

    /// Ends the forward pass: notes its peak and checks it.
    pub(crate) fn end_forward(&self) -> Result<()> {
        self.forward_peak.set(self.peak());
        self.check(Phase::Forward)
    }

    /// Runs one phase, reports it to the observers, and names it in an exhaustion.
    pub(crate) fn run<T, E: Into<Error>>(
        &self,
        phase: Phase,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T> {
        self.observe(phase, || run_phase(phase, work))
    }

    /// Reports one phase to the observers.
    pub(crate) fn observe<T, E>(
        &self,
        phase: Phase,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let memory = (self.memory.as_ref()).map(|(memory, scope)| (*memory, scope));
        self.observers.phase(self.micro.step, phase, memory, work)
    }

    fn peak(&self) -> Option<u64> {
        self.memory.as_ref().and_then(|(_, scope)| scope.peak())
    }

    pub(super) fn completed(&self) -> Completed {
        let mut completed = Completed::new(self.micro.samples.len());
        completed.before = self.memory.as_ref().and_then(|(_, scope)| scope.start());
        completed.peak = self.peak();
        completed.limit = self.memory.as_ref().and_then(|(memory, _)| memory.limit());
        completed.forward_peak = self.forward_peak.get();
        completed
    }
}
