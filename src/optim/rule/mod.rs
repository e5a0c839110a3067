//! The update rules.

#[macro_use]
mod hyper_parameters;

mod adafactor;
mod adam;
mod elementwise;
mod lion;
mod sgd;
mod update_rule;

pub use adafactor::ParamsAdafactor;
pub use adam::ParamsAdam;
pub use elementwise::{Elementwise, Rates};
pub use hyper_parameters::{HyperParameter, Range};
pub use lion::ParamsLion;
pub use sgd::ParamsSgd;
#[cfg(feature = "cuda")]
pub use update_rule::Kernel;
pub use update_rule::{Kept, Rule};
