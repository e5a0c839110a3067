use candle_core::{DType, Tensor, Var};

use crate::optim::group::GroupOptions;
use crate::optim::rule::{Kept, Rates, Rule};
use candle_core::backprop::GradStore;

/// A Var that an optimizer moves.
#[derive(Debug)]
pub struct Managed {
    pub name: String,
    pub var: Var,
    pub group: usize,
    /// Its place in the list that was given.
    pub place: usize,
    /// Its first element, in the Var's own storage. In-place operations on candle's tensors list the axes they go along, which
    /// allocates; on a single element there are none, and an operation sees the whole storage all the same.
    pub handle: Tensor,
    /// Where its elements lie in that storage.
    pub start: usize,
    pub len: usize,
    /// What is kept for it, with the types it is kept in.
    pub kept: Vec<(Kept, DType)>,
    pub has_master: bool,
}

/// All that is given to an engine for one update.
#[derive(Debug)]
pub struct Update<'a, R> {
    pub rule: &'a R,
    pub groups: &'a [GroupOptions],
    pub adjustment: &'a super::adjustment::Adjustment,
    pub parameters: &'a [Managed],
    pub gradients: &'a GradStore,
}

impl<'a, R: Rule> Update<'a, R> {
    /// The gradient that moves a parameter, unless it has none or is frozen.
    pub fn gradient(&self, parameter: &Managed) -> Option<&'a Tensor> {
        gradient(self.groups, self.gradients, parameter)
    }

    pub fn rates(&self, group: usize) -> Rates {
        let options = self.groups.get(group).copied().unwrap_or_default();
        Rates {
            learning_rate: self.rule.learning_rate() * options.learning_rate_factor,
            weight_decay: options.weight_decay.unwrap_or(self.rule.weight_decay()),
        }
    }
}

/// See [`Update::gradient`].
pub fn gradient<'a>(
    groups: &[GroupOptions],
    gradients: &'a GradStore,
    parameter: &Managed,
) -> Option<&'a Tensor> {
    let is_frozen = (groups.get(parameter.group)).is_some_and(|options| options.frozen);
    match is_frozen || parameter.len == 0 {
        true => None,
        false => gradients.get(&parameter.var),
    }
}
