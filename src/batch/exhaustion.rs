//! Completes an exhaustion: candle's error says only that an allocation failed.

use std::ops::Range;

use bytesize::ByteSize;

use super::plan::Plan;
use crate::error::{Cause, Holding, Remedy, ResourceExhausted};
use crate::memory::{DeviceMemory, PeakScope};

/// What is known about work that ran out of memory.
pub(crate) struct Circumstances<'a> {
    pub(crate) memory: Option<(&'a DeviceMemory, &'a PeakScope)>,
    /// Memory held by parameters, gradients and optimizer state; empty if nothing is trained.
    pub(crate) held: Vec<Holding>,
    /// The failed micro-batch; `None` for an update.
    pub(crate) micro_batch: Option<Failed>,
}

pub(crate) struct Failed {
    pub(crate) samples: Range<usize>,
    /// Bytes that a micro-batch of this size is known to need.
    pub(crate) need: Option<u64>,
    pub(crate) plan: Option<Plan>,
}

/// Fills in bytes, cause, holdings and remedies. Returns whether the cause is likely to pass: another process or another part
/// of this one holds the memory, or the free memory is fragmented.
pub(crate) fn complete(
    exhausted: &mut ResourceExhausted,
    circumstances: Circumstances<'_>,
) -> bool {
    let Circumstances {
        memory,
        held,
        micro_batch,
    } = circumstances;
    let start = memory.and_then(|(_, scope)| scope.start());
    exhausted.held = held;
    if let Some((memory, scope)) = memory {
        let need = micro_batch.as_ref().and_then(|failed| failed.need);
        memory.describe(scope, need, exhausted);
    }
    let Some(Failed { samples, plan, .. }) = micro_batch else {
        return false;
    };
    let activations = predict(exhausted, samples.len(), start, plan);
    let mut is_passing = matches!(exhausted.cause, Cause::Neighbour | Cause::Fragmented);
    if samples.len() == 1 && exhausted.may_fit_alone() {
        exhausted.cause = Cause::Limit;
        exhausted.name_other_use();
        is_passing = true;
    }
    if let Some((activations, peak)) = activations.zip(exhausted.bytes.peak) {
        let known = exhausted.held.iter().map(|holding| holding.bytes).sum();
        let most = peak.saturating_sub(start.unwrap_or(0).max(known));
        let holding = Holding::new(Holding::ACTIVATIONS, activations.min(most));
        exhausted.held.push(holding);
    }
    advise(exhausted, &samples, start, plan);
    exhausted.micro_batch = Some(samples.len());
    exhausted.samples = Some(samples);
    is_passing
}

/// Completes an exhaustion that is not retried: asks who else uses the device, which takes time. A single sample that did not
/// fit by itself never will.
pub(crate) fn conclude(
    exhausted: &mut ResourceExhausted,
    is_passing: bool,
    memory: Option<&DeviceMemory>,
    remedies: Vec<Remedy>,
) {
    if exhausted.micro_batch == Some(1) && !is_passing {
        exhausted.cause = Cause::NeverFits;
    }
    exhausted.remedies.extend(remedies);
    if let Some(memory) = memory {
        memory.name_neighbours(exhausted);
    }
}

/// Predicts the use of the whole micro-batch, and returns how much of it are activations.
fn predict(
    exhausted: &mut ResourceExhausted,
    samples: usize,
    start: Option<u64>,
    plan: Option<Plan>,
) -> Option<u64> {
    let (base, each) = plan.and_then(|plan| plan.base.zip(plan.each))?;
    let activations = each.saturating_mul(samples as u64);
    let whole = start.map(|start| start.saturating_add(base).saturating_add(activations));
    exhausted.expected_peak = whole;
    Some(activations)
}

fn advise(
    exhausted: &mut ResourceExhausted,
    samples: &Range<usize>,
    start: Option<u64>,
    plan: Option<Plan>,
) {
    if samples.len() > 1 {
        let half = samples.len() / 2;
        let measured = exhausted.bytes.peak.zip(start);
        let measured = measured.map(|(peak, start)| peak.saturating_sub(start) / 2);
        let each = plan.and_then(|plan| plan.each);
        let learned = each.map(|each| each.saturating_mul((samples.len() - half) as u64));
        let advice = format!("a micro-batch of {half}");
        (exhausted.remedies).push(Remedy::new(advice, learned.or(measured)));
    }
    match (exhausted.bytes.peak, exhausted.bytes.limit) {
        (Some(peak), Some(limit)) if peak > limit => {
            let advice = format!("a limit of at least {}", ByteSize(peak));
            exhausted.remedies.push(Remedy::new(advice, None));
        }
        _ => {}
    }
    let advice = "shorter samples, fewer trained parameters or a smaller model";
    exhausted.remedies.push(Remedy::new(advice, None));
}
