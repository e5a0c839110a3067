//! Layers, and whether gradients arrive at their parameters.

mod audit;

pub use audit::{Audit, Audited, Received, audit};
pub(crate) use audit::{Patterns, is_statistic};
