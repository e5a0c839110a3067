//! Which Vars receive a gradient, and whether it is the right one.

mod builder;
mod display;
mod error;
mod moved;
mod report;
mod slopes;

pub use builder::{AuditBuilder, audit};
pub use error::AuditError;
pub use report::{Audit, Audited, Received, Slope};
