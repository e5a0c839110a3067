//! Completes an exhaustion: candle's error says only that an allocation failed.

use bytesize::ByteSize;

use super::attempt::Attempt;
use super::policy::taken;
use crate::error::{Cause, Holding, Remedy, ResourceExhausted};
use crate::memory::DeviceMemory;

/// Adds what the policy knows, what else holds memory, and remedies to the exhaustion of a micro-batch. Returns whether the
/// cause is likely to pass: another process or another part of this one holds the memory, or the free memory is fragmented.
pub(super) fn complete(
    exhausted: &mut ResourceExhausted,
    attempt: &Attempt<'_>,
    cost: usize,
) -> bool {
    let (samples, start) = (attempt.micro.samples.clone(), attempt.memory.start());
    let count = samples.len();
    let plan = attempt.engine.policy.plan();
    let (base, each) = plan.map_or((None, None), |plan| (plan.base, plan.each));
    let predict = |samples: usize| Some(each?.saturating_mul(samples as u64));
    let activations = base.and(predict(count));
    let mut parts = [start, base, activations].into_iter();
    exhausted.expected_peak = parts.try_fold(0, |sum: u64, part| Some(sum.saturating_add(part?)));
    exhausted.micro_batch = Some(count);
    exhausted.samples = Some(samples);

    let (peak, limit) = (exhausted.bytes.peak, exhausted.bytes.limit);
    let other = exhausted.other_use_in_the_way().filter(|_| count == 1);
    // Without it, what else is held may be the model, which cannot be freed.
    let is_model_known = !exhausted.held.is_empty();
    if let Some(other) = other {
        exhausted.held.push(Holding::new(Holding::OTHER, other));
        if exhausted.cause == Cause::Unknown {
            exhausted.cause = limit.map_or(Cause::DeviceFull, |_| Cause::Limit);
        }
    }
    if let Some((activations, peak)) = activations.zip(peak) {
        let known = exhausted.held.iter().map(|holding| holding.bytes).sum();
        let most = peak.saturating_sub(start.unwrap_or(0).max(known));
        let holding = Holding::new(Holding::ACTIVATIONS, activations.min(most));
        exhausted.held.push(holding);
    }

    let remedies = &mut exhausted.remedies;
    if other.is_some() {
        let advice =
            "freeing other memory of this process, such as data, the batch itself or other models";
        remedies.push(Remedy::new(advice, other.filter(|_| is_model_known)));
    }
    if count > 1 {
        let half = count / 2;
        // A failed micro-batch may not have come to its peak; one that finished has.
        let regions = &attempt.engine.regions;
        let proven = regions.proven(regions.of(attempt.micro.recomputes));
        let measured = proven.need(cost).max(taken(peak, start));
        let measured = measured.map(|taken| taken / 2);
        let advice = format!("a micro-batch of {half}");
        remedies.push(Remedy::new(advice, predict(count - half).or(measured)));
    }
    let recomputation = attempt.recomputation(cost);
    let is_marked = |remedy: &Remedy| remedy.saves.is_some();
    remedies.extend(recomputation.clone().filter(is_marked));
    if let Some(peak) = peak.filter(|peak| limit.is_some_and(|limit| *peak > limit)) {
        let advice = format!("a limit of at least {}", ByteSize(peak));
        remedies.push(Remedy::new(advice, None));
    }
    remedies.extend(recomputation.filter(|remedy| !is_marked(remedy)));
    remedies.extend(attempt.without_logits(cost));
    let advice = "shorter samples, fewer trained parameters or a smaller model";
    remedies.push(Remedy::new(advice, None));
    other.is_some() || matches!(exhausted.cause, Cause::Neighbour | Cause::Fragmented)
}

/// Completes an exhaustion that is not retried, of samples that may fit another time or never do. Asking who else uses the device takes time.
pub(crate) fn conclude(
    exhausted: &mut ResourceExhausted,
    may_fit: bool,
    memory: Option<&DeviceMemory>,
    remedies: Vec<Remedy>,
) {
    if exhausted.micro_batch == Some(1) && !may_fit {
        exhausted.cause = Cause::NeverFits;
    }
    exhausted.remedies.extend(remedies);
    if let Some(memory) = memory {
        memory.name_neighbours(exhausted);
    }
}
