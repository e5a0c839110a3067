use super::core::Core;
use super::summary::UpdateSummary;
use crate::batch::{Circumstances, Engine, Event, Outcome, complete, conclude};
use crate::error::{Error, Phase, Result};
use crate::memory::{DeviceMemory, PeakScope};
use crate::optim::Commit;

/// Applies an update, completes an exhaustion in it, and reports if it went over a soft limit.
pub(super) fn update<O: Commit>(
    core: &mut Core<O>,
    engine: &Engine,
    step: u64,
    outcome: &mut Outcome,
) -> Result<Option<UpdateSummary>> {
    let memory = engine.memory.as_ref();
    let _turn = memory.map(DeviceMemory::turn);
    let scope = memory.map(DeviceMemory::peak_scope);
    let measured = memory.zip(scope.as_ref());
    let updated = (engine.observers).phase(step, Phase::Optimizer, measured, || core.update());
    let updated = updated.map_err(|mut error| {
        if let Error::ResourceExhausted(exhausted) = &mut error {
            let circumstances = Circumstances {
                memory: measured,
                held: core.held(),
                micro_batch: None,
            };
            let is_passing = complete(exhausted, circumstances);
            let remedies = core.accumulator.optimizer().remedies();
            conclude(exhausted, is_passing, memory, remedies);
        }
        error
    })?;
    // No micro-batch size would have helped, so this is reported and changes nothing.
    if let Some(event) = measured.and_then(|(memory, scope)| over_limit(memory, scope)) {
        tracing::warn!("{event}");
        engine.happened(step, event, outcome);
    }
    Ok(updated)
}

fn over_limit(memory: &DeviceMemory, scope: &PeakScope) -> Option<Event> {
    let (peak, limit) = (scope.peak()?, memory.limit()?);
    (peak > limit).then_some(Event::OverLimit { peak, limit })
}
