use std::cell::Cell;

use bytesize::ByteSize;

use super::{Completed, MicroBatch, Observers, Plan};
use crate::error::{Error, Holding, Phase, Remedy, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, PeakScope};

/// A micro-batch's work while it runs.
pub(crate) struct Attempt<'a> {
    pub(crate) micro: MicroBatch,
    pub(super) memory: Option<(&'a DeviceMemory, PeakScope)>,
    pub(super) observers: &'a Observers,
    /// What a micro-batch of this size is known to take, in bytes.
    pub(super) need: Option<u64>,
    /// The highest use until the forward pass was over, in bytes.
    pub(super) forward_peak: Cell<Option<u64>>,
}

impl Attempt<'_> {
    /// Ends the attempt if memory went over its soft limit: called where going on would take more.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.memory {
            Some((memory, scope)) => Ok(memory.check(scope).map_err(Error::ResourceExhausted)?),
            None => Ok(()),
        }
    }

    /// Ends the forward pass: what it took is noted, and [`check`](Self::check)ed.
    pub(crate) fn end_forward(&self) -> Result<()> {
        let peak = self.memory.as_ref().and_then(|(_, scope)| scope.peak());
        self.forward_peak.set(peak);
        self.check().map_err(|error| error.in_phase(Phase::Forward))
    }

    /// Runs one phase of the micro-batch, told to the observers.
    pub(crate) fn phase<T, E>(
        &self,
        phase: Phase,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let memory = (self.memory.as_ref()).map(|(memory, scope)| (*memory, scope));
        self.observers.phase(self.micro.step, phase, memory, work)
    }

    pub(super) fn completed(&self) -> Completed {
        Completed {
            size: self.micro.samples.len(),
            before: self.memory.as_ref().and_then(|(_, scope)| scope.start()),
            peak: self.memory.as_ref().and_then(|(_, scope)| scope.peak()),
            limit: self.memory.as_ref().and_then(|(memory, _)| memory.limit()),
            forward_peak: self.forward_peak.get(),
        }
    }

    /// Adds what the error itself cannot know, and what the policy's model says of it.
    pub(super) fn describe(&self, plan: Option<Plan>, exhausted: &mut ResourceExhausted) {
        let samples = self.micro.samples.clone();
        if let Some((memory, scope)) = &self.memory {
            memory.describe(scope, self.need, exhausted);
        }
        if let Some(plan) = plan {
            self.predict(&plan, exhausted);
        }
        let each = plan.and_then(|plan| plan.each);
        if samples.len() > 1 {
            let half = samples.len() / 2;
            let own = self.memory.as_ref().and_then(|(_, scope)| {
                Some(exhausted.bytes.peak?.saturating_sub(scope.start()?) / 2)
            });
            let learned = each.map(|each| each.saturating_mul((samples.len() - half) as u64));
            let advice = format!("a micro-batch of {half}");
            exhausted
                .remedies
                .push(Remedy::new(advice, learned.or(own)));
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

    /// What the whole micro-batch would have taken, and what of it are activations: no more than came since it began.
    fn predict(&self, plan: &Plan, exhausted: &mut ResourceExhausted) {
        let (Some(base), Some(each)) = (plan.base, plan.each) else {
            return;
        };
        let before = self.memory.as_ref().and_then(|(_, scope)| scope.start());
        let activations = each.saturating_mul(self.micro.samples.len() as u64);
        let whole = before.map(|before| before.saturating_add(base).saturating_add(activations));
        exhausted.expected_peak = whole;
        if let Some(peak) = exhausted.bytes.peak {
            let known = exhausted.held.iter().map(|holding| holding.bytes).sum();
            let most = peak.saturating_sub(before.unwrap_or(0).max(known));
            let holding = Holding::new(Holding::ACTIVATIONS, activations.min(most));
            exhausted.held.push(holding);
        }
    }
}
