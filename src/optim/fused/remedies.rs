use candle_core::DType;

use super::Fused;
use super::managed::Managed;
use crate::error::Remedy;
use crate::optim::rule::{Kept, Rule};
use crate::optim::{Algorithm, ParamsAdafactor};

impl<A: Algorithm> Fused<A> {
    /// What would make this optimizer and its gradients take less, in bytes: kept state and sums of gradients are counted,
    /// not estimated.
    pub(in crate::optim) fn remedies(&self) -> Vec<Remedy> {
        let total = |bytes: fn(&Managed) -> u64| self.parameters.iter().map(bytes).sum::<u64>();
        let adafactor = ParamsAdafactor::NAME;
        let mut remedies = vec![
            ("moments in bf16".to_owned(), total(in_bf16)),
            ("Sgd without momentum".to_owned(), total(kept)),
        ];
        if A::NAME != adafactor {
            remedies.push((adafactor.to_owned(), total(by_adafactor)));
        }
        remedies.extend(self.freezing());
        let saving = remedies.into_iter().filter(|(_, saves)| *saves > 0);
        saving
            .map(|(advice, saves)| Remedy::new(advice, Some(saves)))
            .collect()
    }

    /// To leave a group out, or, where there is one, the largest parameter.
    fn freezing(&self) -> Vec<(String, u64)> {
        let trained = |parameter: &&Managed| {
            let options = self.groups.get(parameter.group);
            !options.is_some_and(|options| options.frozen)
        };
        let trained = || self.parameters.iter().filter(trained);
        if self.groups.len() > 1 {
            let groups = (0..self.groups.len()).map(|group| {
                let parameters = trained().filter(|parameter| parameter.group == group);
                let saves = parameters.map(|parameter| gradient(parameter) + kept(parameter));
                (format!("group {group} not trained"), saves.sum())
            });
            return groups.collect();
        }
        let largest = trained().max_by_key(|parameter| parameter.len);
        let others = trained().count() > 1;
        let largest = largest.filter(|_| others).map(|parameter| {
            let advice = format!("{} not trained", parameter.name);
            (advice, gradient(parameter) + kept(parameter))
        });
        largest.into_iter().collect()
    }
}

fn bytes_of((kept, dtype): &(Kept, DType)) -> u64 {
    let elements: usize = kept.dims.iter().product();
    (elements * dtype.size_in_bytes()) as u64
}

/// All that is kept for a parameter besides its master weights.
fn kept(parameter: &Managed) -> u64 {
    parameter.kept.iter().map(bytes_of).sum()
}

fn in_bf16(parameter: &Managed) -> u64 {
    let moments = parameter.kept.iter();
    let moments = moments.filter(|(kept, dtype)| kept.is_moment && *dtype == DType::F32);
    moments.map(bytes_of).sum::<u64>() / 2
}

fn by_adafactor(parameter: &Managed) -> u64 {
    let state = ParamsAdafactor::default().state(parameter.var.dims());
    let needed: u64 = state
        .into_iter()
        .map(|kept| bytes_of(&(kept, DType::F32)))
        .sum();
    kept(parameter).saturating_sub(needed)
}

/// The sum of a parameter's gradients, which is f32 for smaller types.
fn gradient(parameter: &Managed) -> u64 {
    (parameter.len * parameter.var.dtype().size_in_bytes().max(4)) as u64
}
