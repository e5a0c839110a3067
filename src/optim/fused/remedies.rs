use candle_core::DType;

use super::held::Held;
use super::managed::Managed;
use super::optimizer::Fused;
use crate::error::Remedy;
use crate::optim::coded::Form;
use crate::optim::rule::Rule;
use crate::optim::{Algorithm, Moments, ParamsAdafactor};

impl<A: Algorithm> Fused<A> {
    /// Ways to make it use less memory.
    pub(super) fn ways_to_save(&self) -> Vec<Remedy> {
        // Bytes that are counted, not estimated.
        let total = |bytes: fn(&Managed) -> u64| self.setup.updated().map(bytes).sum::<u64>();
        let mut remedies = vec![
            (
                "moments in bf16".to_owned(),
                self.saving(Moments::Float(DType::BF16)),
            ),
            (
                "moments of 8 bits".to_owned(),
                self.saving(Moments::EightBit),
            ),
            (
                "`stochastic_rounding()` in place of `master_weights()`".to_owned(),
                self.rounding(),
            ),
            ("moments on the host".to_owned(), total(on_host)),
            ("Sgd without momentum".to_owned(), total(by_rule)),
        ];
        // Its state cannot be cut.
        if A::NAME != ParamsAdafactor::NAME && self.setup.shard.is_none() {
            remedies.push((ParamsAdafactor::NAME.to_owned(), total(by_adafactor)));
        }
        remedies.extend(self.freezing());
        let saving = remedies.into_iter().filter(|(_, saves)| *saves > 0);
        saving
            .map(|(advice, saves)| Remedy::new(advice, Some(saves)))
            .collect()
    }

    /// What other moments would save. f64 ones cannot be kept in fewer bits, and a group's own stay.
    fn saving(&self, moments: Moments) -> u64 {
        let held = self.setup.updated();
        let held = held.filter(|parameter| !parameter.on_host && !parameter.has_own_moments);
        let held = held.flat_map(Managed::by_rule);
        let held = held.filter(|held| held.form != Form::Plain(DType::F64));
        let (now, then) = held.fold((0, 0), |(now, then), held| {
            let other = Held {
                part: held.part,
                ..Held::new(held.kept.clone(), moments, DType::F32)
            };
            (now + held.bytes(), then + other.bytes())
        });
        now.saturating_sub(then)
    }

    /// Master weights, unless f16 parameters need them.
    fn rounding(&self) -> u64 {
        let mut updated = self.setup.updated();
        match updated.any(|parameter| parameter.var.dtype() == DType::F16) {
            true => 0,
            false => {
                let on_device = self.setup.updated().filter(|p| !p.on_host);
                on_device.map(Managed::master_bytes).sum()
            }
        }
    }

    /// Freezing a group or, if there is one group, the largest parameter.
    fn freezing(&self) -> Vec<(String, u64)> {
        let updated: Vec<_> = self.setup.updated().collect();
        if self.setup.groups.len() > 1 {
            let groups = (0..self.setup.groups.len()).map(|group| {
                let parameters = updated.iter().filter(|p| p.group == group);
                let saving = parameters.map(|p| frozen_saves(p)).sum();
                (format!("group {group} not trained"), saving)
            });
            return groups.collect();
        }
        let largest = updated.iter().max_by_key(|parameter| parameter.len);
        let largest = largest.filter(|_| updated.len() > 1);
        let largest = largest.map(|p| (format!("`{}` not trained", p.name), frozen_saves(p)));
        largest.into_iter().collect()
    }
}

/// What is kept of a parameter's state, and its summed gradients, which are f32 for smaller types.
fn frozen_saves(parameter: &Managed) -> u64 {
    let gradients = parameter.len * parameter.var.dtype().size_in_bytes().max(4);
    gradients as u64 + parameter.kept_bytes()
}

fn by_rule(parameter: &Managed) -> u64 {
    match parameter.on_host {
        true => 0,
        false => parameter.by_rule().iter().map(Held::bytes).sum(),
    }
}

/// Moments of CUDA parameters can move, with their master weights; see `FusedBuilder::moments_on_host`.
fn on_host(parameter: &Managed) -> u64 {
    match parameter.var.device().is_cuda() {
        true => parameter.movable_bytes() - parameter.host_bytes(),
        false => 0,
    }
}

fn by_adafactor(parameter: &Managed) -> u64 {
    let state = ParamsAdafactor::default().state(parameter.var.dims());
    let needed = state
        .into_iter()
        .map(|kept| Held::plain(kept, DType::F32).bytes());
    by_rule(parameter).saturating_sub(needed.sum())
}
