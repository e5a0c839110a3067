//! Completes an exhaustion: candle's error says only that an allocation failed.

use bytesize::ByteSize;

use super::attempt::Attempt;
use super::plan::Plan;
use crate::error::{Cause, Holding, Remedy, ResourceExhausted};
use crate::memory::DeviceMemory;

/// Adds what the policy knows, what else holds memory, and remedies to the exhaustion of a micro-batch. Returns whether the
/// cause is likely to pass: another process or another part of this one holds the memory, or the free memory is fragmented.
pub(super) fn complete(
    exhausted: &mut ResourceExhausted,
    attempt: &Attempt<'_>,
    plan: Option<Plan>,
) -> bool {
    let (samples, start) = (attempt.micro.samples.clone(), attempt.memory.start());
    let (base, each) = plan.map_or((None, None), |plan| (plan.base, plan.each));
    let predict = |samples: usize| Some(each?.saturating_mul(samples as u64));
    let activations = base.and_then(|_| predict(samples.len()));
    let fixed = start.zip(base);
    let whole = fixed.zip(activations);
    exhausted.expected_peak = whole
        .map(|((start, base), activations)| start.saturating_add(base).saturating_add(activations));
    exhausted.micro_batch = Some(samples.len());

    let other = exhausted.other_use_in_the_way();
    let other = other.filter(|_| samples.len() == 1);
    if let Some(other) = other {
        exhausted.held.push(Holding::new(Holding::OTHER, other));
        if exhausted.cause == Cause::Unknown {
            exhausted.cause = match exhausted.bytes.limit {
                Some(_) => Cause::Limit,
                None => Cause::DeviceFull,
            };
        }
    }
    if let Some((activations, peak)) = activations.zip(exhausted.bytes.peak) {
        let known = exhausted.held.iter().map(|holding| holding.bytes).sum();
        let most = peak.saturating_sub(start.unwrap_or(0).max(known));
        let holding = Holding::new(Holding::ACTIVATIONS, activations.min(most));
        exhausted.held.push(holding);
    }

    let (peak, limit) = (exhausted.bytes.peak, exhausted.bytes.limit);
    if other.is_some() {
        let advice =
            "freeing other memory of this process, such as data, the batch itself or other models";
        let remedy = Remedy::new(advice, other);
        exhausted.remedies.push(remedy);
    }
    if samples.len() > 1 {
        let half = samples.len() / 2;
        let measured = peak.zip(start);
        let measured = measured.map(|(peak, start)| peak.saturating_sub(start) / 2);
        let advice = format!("a micro-batch of {half}");
        let remedy = Remedy::new(advice, predict(samples.len() - half).or(measured));
        exhausted.remedies.push(remedy);
    }
    if let Some((peak, _)) = peak.zip(limit).filter(|(peak, limit)| peak > limit) {
        let advice = format!("a limit of at least {}", ByteSize(peak));
        exhausted.remedies.push(Remedy::new(advice, None));
    }
    let advice = "shorter samples, fewer trained parameters or a smaller model";
    exhausted.remedies.push(Remedy::new(advice, None));
    exhausted.samples = Some(samples);
    other.is_some() || matches!(exhausted.cause, Cause::Neighbour | Cause::Fragmented)
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
