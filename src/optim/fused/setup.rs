use std::cmp::Reverse;

use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::adjustment::Adjustment;
use super::managed::{Halves, Managed};
use crate::error::{Phase, Result, invalid};
use crate::optim::coded::Form;
use crate::optim::rule::{Range, Rates, Rule};
use crate::optim::{GroupOptions, Parameter, Shard};
use crate::testing;

/// The parameters of an optimizer and the way in which it updates them.
#[derive(Debug, Clone, Default)]
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
        self.rule.moments() == rule.moments()
    }
}

/// Moves at least this part of the bytes of each group's moments and master weights to host memory: whole parameters, the largest first,
/// and none that is not needed for it. Groups are treated apart, because they are frozen and thawed apart.
pub fn move_moments(parameters: &mut [Managed], fraction: f64) {
    let groups = parameters.iter().map(|parameter| parameter.group + 1).max();
    for group in 0..groups.unwrap_or(0) {
        let movable = parameters.iter_mut().filter(|p| p.group == group);
        let movable = movable.map(|p| (p.movable_bytes(), &mut p.on_host));
        let mut movable: Vec<_> = movable.filter(|(bytes, _)| *bytes > 0).collect();
        // The sort is stable, so equally large ones stay in the order in which they were given.
        movable.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let total: u64 = movable.iter().map(|(bytes, _)| bytes).sum();
        let mut missing = total.min((total as f64 * fraction).ceil() as u64);
        for (bytes, on_host) in &mut movable {
            if let Some(rest) = missing.checked_sub(*bytes) {
                (**on_host, missing) = (true, rest);
            }
        }
        if missing == 0 {
            continue;
        }
        // Each of the others is larger than what is missing.
        let mut smallest_first = movable.iter_mut().rev();
        if let Some((bytes, on_host)) = smallest_first.find(|(_, on_host)| !**on_host) {
            **on_host = true;
            let mut surplus = *bytes - missing;
            for (bytes, on_host) in movable.iter_mut().filter(|(_, on_host)| **on_host) {
                if let Some(rest) = surplus.checked_sub(*bytes) {
                    (**on_host, surplus) = (false, rest);
                }
            }
        }
    }
}

impl<R: Rule> Setup<R> {
    /// Returns the same for these elements alone, or for all.
    pub fn cut(&self, shard: Option<&Shard>) -> Result<Self> {
        let mut cut = Self {
            shard: shard.cloned(),
            ..self.clone()
        };
        for parameter in &mut cut.parameters {
            let all = 0..parameter.len;
            let ranges = match shard {
                Some(shard) if !all.is_empty() => shard.ranges(&parameter.var).unwrap_or_default(),
                // A parameter without elements is every rank's.
                _ => std::slice::from_ref(&all),
            };
            for range in ranges {
                if let Some(reason) = reason_against(parameter, range) {
                    return Err(invalid!(
                        Optimizer,
                        "elements {range:?} of parameter `{}` cannot be a piece of a shard: {reason}",
                        parameter.name
                    ));
                }
            }
            parameter.restrict(ranges);
            parameter.on_host = false;
        }
        if let Some(fraction) = cut.on_host {
            move_moments(&mut cut.parameters, fraction);
        }
        Ok(cut)
    }

    /// Checks that no parameter is left out because the shard was made without it.
    pub fn check_listed(&self) -> Result<()> {
        let Some(shard) = &self.shard else {
            return Ok(());
        };
        match self.updated().find(|p| shard.ranges(&p.var).is_none()) {
            Some(parameter) => Err(invalid!(
                Optimizer,
                "the shard does not list parameter `{}`: call `shard` with the ranges of all parameters that are not frozen, and none where this rank owns nothing",
                parameter.name
            )),
            None => Ok(()),
        }
    }

    /// Whether state is kept for elements of this parameter, here or by other ranks.
    pub fn has_state(&self, parameter: &Managed) -> bool {
        let listed = self.shard.as_ref();
        let is_listed = listed.is_none_or(|shard| shard.ranges(&parameter.var).is_some());
        is_listed && !self.is_frozen(parameter)
    }
}

/// Why these elements cannot be updated by themselves.
fn reason_against(parameter: &Managed, range: &std::ops::Range<usize>) -> Option<String> {
    let (len, unit) = (parameter.len, Shard::ALIGNMENT);
    if range.end > len {
        return Some(format!("the parameter has {len} elements"));
    }
    if range.len() == len {
        return None;
    }
    let is_coded = |form| matches!(form, Form::Coded(_));
    let is_cut = |end: usize| !end.is_multiple_of(unit) && end != len;
    let cuts_blocks = is_cut(range.start) || is_cut(range.end);
    (cuts_blocks && parameter.kept.iter().any(|held| is_coded(held.form))).then(|| {
        format!("it cuts a block of moments of 8 bits; cut at multiples of {unit} elements")
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::optim::fused::Halves;
    use crate::optim::rule::ParamsAdam;
    use crate::optim::{Parameter, ParamsSgd, rule::Rule};

    /// The parameters with these numbers of elements, all of group 0 but the last, whose moments move.
    fn moved<R: Rule>(rule: &R, sizes: &[usize], fraction: f64) -> Vec<usize> {
        let parameters = sizes.iter().enumerate().map(|(index, size)| {
            let var = Var::zeros(*size, DType::F32, &Device::Cpu).unwrap();
            let group = usize::from(index + 1 == sizes.len());
            let named = Parameter::new(index.to_string(), var);
            Managed::new(rule, named, group, (None, None), Halves::default()).unwrap()
        });
        let mut parameters: Vec<_> = parameters.collect();
        move_moments(&mut parameters, fraction);
        let on_host = parameters.iter().enumerate();
        on_host
            .filter(|(_, p)| p.on_host)
            .map(|(index, _)| index)
            .collect()
    }

    #[test]
    fn the_largest_move_until_the_part_is_reached() {
        let adam = ParamsAdam::default();
        let sizes = [10, 40, 0, 30, 20, 7];
        assert_eq!(moved(&adam, &sizes, 1.), [0, 1, 3, 4, 5]);
        // 40 of 100, and the last group by itself: a parameter moves whole.
        assert_eq!(moved(&adam, &sizes, 0.4), [1, 5]);
        assert_eq!(moved(&adam, &sizes, 0.5), [0, 1, 5]);
        // The smallest that is enough.
        assert_eq!(moved(&adam, &sizes, 0.05), [0, 5]);
        assert_eq!(moved(&adam, &sizes, 0.75), [0, 1, 3, 5]);
        assert_eq!(moved(&adam, &[8, 8, 8, 0], 0.3), [2]);
        assert_eq!(moved(&adam, &[8, 8, 8, 0], 0.34), [0, 2]);
        // One that is enough by itself, not the small ones with it.
        assert_eq!(moved(&adam, &[8, 50, 5, 0], 0.5), [1]);
        assert_eq!(moved(&adam, &[0, 0], 1.), [0; 0]);
    }

    #[test]
    fn what_is_no_moment_stays() {
        assert_eq!(moved(&ParamsSgd::default(), &[10, 10], 1.), [0; 0]);
    }
}
