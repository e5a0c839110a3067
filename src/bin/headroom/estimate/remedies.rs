//! What would reduce the peak.

use candle_core::DType;
use candle_headroom::error::Remedy;

use super::activations::{Model, Way};
use super::training::{Lora, Moments, Training};

/// Remedies for a micro-batch of so many samples whose layers are kept, the most effective first.
pub fn remedies(model: &Model<'_>, samples: u64) -> Vec<Remedy> {
    let [kept, _, recomputed, _] = Way::ALL;
    let own = model.training;
    let peak = |training: &Training, samples: u64, way: Way| {
        let model = Model { training, ..*model };
        training.held_bytes() as f64 + model.taken(samples, way)
    };
    let with = |change: &dyn Fn(&mut Training)| {
        let mut other = own.clone();
        change(&mut other);
        peak(&other, samples, kept)
    };
    let now = peak(own, samples, kept);
    let mut found = vec![
        (
            "each block in `nn::recompute`",
            peak(own, samples, recomputed),
        ),
        (
            "half the micro-batch",
            peak(own, (samples / 2).max(1), kept),
        ),
        (
            "moments in 8 bits",
            with(&|other| other.moments = Moments::EightBit),
        ),
    ];
    if own.dtype == DType::F32 {
        found.push((
            "the model in bf16",
            with(&|other| other.dtype = DType::BF16),
        ));
    }
    if own.lora.is_none() {
        let (rank, targets) = (8, vec!["all-linear".to_owned()]);
        let adapters = own.with_adapters(model.config, Lora { rank, targets });
        found.push(("adapters of rank 8 (LoRA)", peak(&adapters, samples, kept)));
    }
    found.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let saving = found.into_iter().filter(|(_, then)| *then < 0.99 * now);
    let remedies = saving.map(|(advice, then)| Remedy::new(advice, Some((now - then) as u64)));
    remedies.collect()
}
