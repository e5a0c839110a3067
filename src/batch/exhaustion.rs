//! Builds the exhaustion that observers, policies and callers get: candle's error says only that an allocation failed.

use bytesize::ByteSize;

use super::attempt::Attempt;
use super::measured::Measured;
use super::policy::taken;
use crate::error::{Cause, Error, Holding, Remedy, Resource, ResourceExhausted, device_name};
use crate::memory::DeviceMemory;

/// A micro-batch that failed: its attempt, its cost, and the layers that held the most.
pub(super) type FailedAttempt<'a> = (&'a Attempt<'a>, usize, Vec<Holding>);

impl Measured<'_> {
    /// Builds the exhaustion from what the error says (`found`) and all else that is known: the memory's state and the cause that follows
    /// from it, what the training holds (`None` if that is not known here), and for a micro-batch what the policy predicts, what else holds
    /// memory, and remedies.
    pub(crate) fn exhausted(
        &self,
        found: Box<ResourceExhausted>,
        held: Option<Vec<Holding>>,
        failed: Option<FailedAttempt<'_>>,
    ) -> Box<ResourceExhausted> {
        let mut exhausted = found;
        let need = (failed.as_ref()).and_then(|(attempt, cost, _)| attempt.need(*cost));
        if let Some((memory, scope)) = &self.0 {
            let (bytes, cause) = memory.refused(scope, need);
            exhausted.device = Some(device_name(memory.device().location()));
            exhausted.bytes = bytes;
            if exhausted.cause == Cause::Unknown && exhausted.resource == Resource::DeviceMemory {
                exhausted.cause = cause;
            }
        }
        exhausted.held = held.unwrap_or(exhausted.held);
        let Some((attempt, cost, layers)) = failed else {
            return exhausted;
        };
        exhausted.layers = layers;
        let (samples, start) = (attempt.micro.samples.clone(), self.start());
        let count = samples.len();
        let plan = attempt.engine.policy.plan();
        let (base, each) = plan.map_or((None, None), |plan| (plan.base, plan.each));
        let predict = |samples: usize| Some(each?.saturating_mul(samples as u64));
        let activations = base.and(predict(count));
        let mut parts = [start, base, activations].into_iter();
        exhausted.expected_peak =
            parts.try_fold(0, |sum: u64, part| Some(sum.saturating_add(part?)));
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
            let advice = "freeing other memory of this process, such as data, the batch itself or other models";
            remedies.push(Remedy::new(advice, other.filter(|_| is_model_known)));
        }
        if count > 1 {
            let half = count / 2;
            // A failed micro-batch may not have come to its peak; one that finished has.
            let measured = need.max(taken(peak, start)).map(|taken| taken / 2);
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
        exhausted
    }
}

/// Whether the cause is likely to pass: another process or another part of this one holds the memory, or the free memory is in pieces.
pub(super) fn is_passing(exhausted: &ResourceExhausted) -> bool {
    let mut held = exhausted.held.iter();
    held.any(|held| held.what == Holding::OTHER)
        || matches!(exhausted.cause, Cause::Neighbour | Cause::Fragmented)
}

/// The error of an exhaustion after which nothing is tried again; one sample never fits then, unless it `may_fit` without what was lost.
/// Who else uses the device is asked only here, because the answer may take seconds.
pub(crate) fn ended(
    mut exhausted: Box<ResourceExhausted>,
    may_fit: bool,
    remedies: Vec<Remedy>,
    memory: Option<&DeviceMemory>,
) -> Error {
    if exhausted.micro_batch == Some(1) && !may_fit && !is_passing(&exhausted) {
        exhausted.cause = Cause::NeverFits;
    }
    exhausted.remedies.extend(remedies);
    if let Some(memory) = memory {
        exhausted.neighbours = memory.neighbours();
        let in_the_way = match exhausted.cause {
            Cause::Neighbour | Cause::DeviceFull => true,
            Cause::NeverFits => exhausted.bytes.limit.is_none(),
            _ => false,
        };
        if let Some(neighbour) = exhausted.neighbours.first().filter(|_| in_the_way) {
            let remedy = Remedy::new(format!("the GPU without {neighbour}"), neighbour.bytes);
            exhausted.remedies.push(remedy);
        }
    }
    Error::ResourceExhausted(exhausted)
}
