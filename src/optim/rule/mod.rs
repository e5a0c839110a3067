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
pub use lion::ParamsLion;
pub use sgd::ParamsSgd;
pub use update_rule::{Algorithm, Kept, Rates, Rule};
