use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::adjustment::Adjustment;
use super::held::Halves;
use super::managed::Managed;
use crate::error::{Phase, Result};
use crate::optim::rule::{Range, Rates, Rule};
use crate::optim::{GroupOptions, Parameter, Shard};
use crate::testing;

/// The parameters of an optimizer and the way in which it updates them.
#[derive(Debug, Clone)]
pub struct Setup<R> {
    pub rule: R,
    pub groups: Vec<GroupOptions>,
    /// The parameters of all groups, in the order in which they were given.
    pub parameters: Vec<Managed>,
    pub shard: Option<Shard>,
    /// The memory of all parameters, sorted.
    pub memory: Vec<usize>,
    pub adjustment: Adjustment,
    pub halves: Halves,
    /// Part of the moments that is in host memory; `None` for parameters there.
    pub on_host: Option<f64>,
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

    /// All ranges of elements that are updated by themselves, with their parameters.
    #[cfg(feature = "cuda")]
    pub fn ranges(&self) -> impl Iterator<Item = (&Managed, &std::ops::Range<usize>)> {
        let parameters = self.parameters.iter();
        parameters
            .flat_map(|parameter| parameter.ranges.iter().map(move |range| (parameter, range)))
    }

    /// The parameters that are not frozen, for the user.
    pub fn names(&self) -> Vec<Parameter> {
        self.updated().map(Managed::parameter).collect()
    }

    /// The parameters that are frozen, for the user.
    pub fn frozen(&self) -> Vec<Parameter> {
        let frozen = self.parameters.iter().filter(|p| self.is_frozen(p));
        frozen.map(Managed::parameter).collect()
    }

    /// Returns the gradient of a parameter, and `None` if it is frozen or none of its elements are updated here.
    pub fn gradient<'a>(&self, parameter: &Managed, store: &'a GradStore) -> Option<&'a Tensor> {
        let gradient = store.get(&parameter.var)?;
        (parameter.owned() > 0 && !self.is_frozen(parameter)).then_some(gradient)
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

    /// Checks that the parameters that are not frozen have types that the options are for.
    pub fn check_options(&self) -> Result<()> {
        let mut updated = self.updated();
        updated.try_for_each(|parameter| parameter.check_options(self.halves))
    }

    /// Checks everything that could make an update fail.
    pub fn check(&self, gradients: &GradStore) -> Result<()> {
        // candle's method that sets the learning rate returns no error.
        let [learning_rate, ..] = self.rule.numbers();
        Range::NOT_NEGATIVE.check(R::NAME, "lr", learning_rate)?;
        for group in &self.groups {
            let rate = learning_rate * group.learning_rate_factor;
            Range::NOT_NEGATIVE.check(R::NAME, "lr * learning_rate_factor", rate)?;
        }
        self.check_listed()?;
        for parameter in self.updated() {
            testing::inject(Phase::Optimizer)?;
            if let Some(gradient) = self.gradient(parameter, gradients) {
                parameter.check(gradient, &self.memory)?;
            }
        }
        Ok(())
    }

    /// Whether the rule keeps the same tensors with these hyper-parameters.
    pub fn keeps_state_of(&self, rule: &R) -> bool {
        self.parameters.iter().all(|parameter| {
            let kept = parameter.by_rule().iter().map(|held| &held.kept);
            kept.eq(rule.state(parameter.var.dims()).iter())
        })
    }
}
