//! Which Vars receive a gradient, and whether it is the right one.

mod builder;
mod display;
mod error;
mod moved;
mod names;
mod precision;
mod report;
mod slope;
mod slopes;
mod values;

pub use builder::{AuditBuilder, audit};
pub use error::AuditError;
pub use report::{Audit, Audited, Received};
pub use slope::Slope;
