use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::adjustment::Adjustment;
use super::managed::Managed;
use crate::optim::rule::{Rates, Rule};
use crate::optim::{GroupOptions, Parameter};

/// The parameters of an optimizer and the way in which it updates them.
#[derive(Debug)]
pub struct Setup<R> {
    pub rule: R,
    pub groups: Vec<GroupOptions>,
    /// The parameters of all groups, in the order in which they were given.
    pub parameters: Vec<Managed>,
    pub adjustment: Adjustment,
}

impl<R: Rule> Setup<R> {
    pub fn is_frozen(&self, parameter: &Managed) -> bool {
        let options = self.groups.get(parameter.group);
        options.is_some_and(|options| options.frozen)
    }

    /// The parameters that are not frozen.
    pub fn updated(&self) -> impl Iterator<Item = &Managed> {
        self.parameters.iter().filter(|p| !self.is_frozen(p))
    }

    /// The parameters that are not frozen, for the user.
    pub fn names(&self) -> Vec<Parameter> {
        let updated = self.updated();
        updated
            .map(|p| Parameter::new(&p.name, p.var.clone()))
            .collect()
    }

    /// Returns the gradient of a parameter, and `None` if the parameter is frozen or has no elements.
    pub fn gradient<'a>(&self, parameter: &Managed, store: &'a GradStore) -> Option<&'a Tensor> {
        let gradient = store.get(&parameter.var)?;
        (parameter.len > 0 && !self.is_frozen(parameter)).then_some(gradient)
    }

    pub fn rates(&self, parameter: &Managed) -> Rates {
        let [learning_rate, weight_decay, ..] = self.rule.numbers();
        let options = self.groups.get(parameter.group);
        let options = options.copied().unwrap_or_default();
        Rates {
            learning_rate: learning_rate * options.learning_rate_factor,
            weight_decay: options.weight_decay.unwrap_or(weight_decay),
        }
    }

    /// Whether the rule keeps the same tensors with these hyper-parameters.
    pub fn keeps_state_of(&self, rule: &R) -> bool {
        self.parameters.iter().all(|parameter| {
            let kept = parameter.kept.iter().map(|(kept, _)| kept);
            kept.eq(&rule.state(parameter.var.dims()))
        })
    }
}
