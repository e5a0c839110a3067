//! The update rules.

mod adam;
mod lion;
mod sgd;
mod update_rule;

pub use adam::ParamsAdam;
pub use lion::ParamsLion;
pub use sgd::ParamsSgd;
pub use update_rule::{Range, Rates, Rule};

/// An optimizer's hyper-parameters, whose type names its update rule. Only this crate implements it.
pub trait Algorithm: Rule {}

impl Algorithm for candle_nn::ParamsAdamW {}
impl Algorithm for ParamsAdam {}
impl Algorithm for ParamsSgd {}
impl Algorithm for ParamsLion {}
