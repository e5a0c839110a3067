//! The update rules.

mod adafactor;
mod adam;
mod hyper_parameter;
mod lion;
mod sgd;
mod update_rule;

pub use adafactor::ParamsAdafactor;
pub use adam::ParamsAdam;
pub use hyper_parameter::Range;
use hyper_parameter::{HyperParameter, hyper_parameters};
pub use lion::ParamsLion;
pub use sgd::ParamsSgd;
pub use update_rule::{Kept, Rates, Rule, Sign};

/// An optimizer's hyper-parameters, whose type names its update rule. Only this crate implements it.
pub trait Algorithm: Rule {}

impl Algorithm for candle_nn::ParamsAdamW {}
impl Algorithm for ParamsAdam {}
impl Algorithm for ParamsSgd {}
impl Algorithm for ParamsLion {}
impl Algorithm for ParamsAdafactor {}
