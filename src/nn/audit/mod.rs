//! Which Vars receive a gradient.

mod differentiate;
mod display;
mod names;
mod report;

pub use differentiate::audit;
pub(crate) use names::{Patterns, is_statistic};
pub use report::{Audit, Audited, Received};
