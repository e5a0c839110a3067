//! What went wrong in a run, as lines of JSON.

mod log;
mod record;
mod summary;

pub use log::{IncidentLog, IncidentLogBuilder};
pub use record::{Incident, IncidentKind};
pub use summary::{IncidentSummary, Incidents};
