use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::adjustment::Adjustment;
use super::managed::Managed;
use crate::optim::GroupOptions;
use crate::optim::rule::{Rates, Rule};

/// What an engine needs for one update.
#[derive(Debug)]
pub struct Update<'a, R> {
    pub rule: &'a R,
    pub groups: &'a [GroupOptions],
    pub adjustment: &'a Adjustment,
    pub parameters: &'a [Managed],
    pub gradients: &'a GradStore,
}

impl<R: Rule> Update<'_, R> {
    pub fn rates(&self, group: usize) -> Rates {
        let options = self.groups.get(group).copied().unwrap_or_default();
        Rates {
            learning_rate: self.rule.learning_rate() * options.learning_rate_factor,
            weight_decay: options.weight_decay.unwrap_or(self.rule.weight_decay()),
        }
    }
}

/// The state of one parameter: its tensors, its master weights, and how often it was updated.
#[derive(Debug)]
pub struct Snapshot {
    pub step: u64,
    pub tensors: Vec<Tensor>,
    pub master: Option<Tensor>,
}

/// Where a parameter's state comes from when an engine is set up.
#[derive(Debug)]
pub enum Origin {
    /// Zeros: the parameter is new, or was frozen.
    Fresh,
    /// The state that the engine has at this index.
    Kept(usize),
    /// Saved state, of the types and sizes that are kept.
    Loaded(Snapshot),
}
