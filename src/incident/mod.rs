//! What went wrong in a run, as lines of JSON.

mod exhaustion;
mod kind;
mod log;
mod read;
mod record;
mod summary;

pub use exhaustion::Exhaustion;
pub use kind::IncidentKind;
pub use log::{IncidentLog, IncidentLogBuilder};
pub use read::Incidents;
pub use record::{Fault, Incident};
pub use summary::IncidentSummary;
