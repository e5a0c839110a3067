//! What went wrong in a run, as lines of JSON.

mod kind;
mod log;
mod read;
mod record;
mod summary;

pub use kind::IncidentKind;
pub use log::{IncidentLog, IncidentLogBuilder};
pub use read::Incidents;
pub use record::Incident;
pub use summary::IncidentSummary;
