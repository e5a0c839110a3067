//! Is this machine fit, and if not, what to do: [`Environment::check`].
//!
//! Probes read files and libraries and judge nothing ([`probe`]); judges draw conclusions and read nothing ([`judge`]); what can be
//! concluded is data ([`code`]). Nothing here panics, prints, or fails: what cannot be read is a finding.

mod built;
mod check;
mod code;
mod facts;
mod finding;
mod json;
mod judge;
mod probe;
mod redact;
mod report;
mod requirement;
mod smoke;
mod source;
mod terminal;
mod timed;
mod visible;

pub use check::Environment;
pub use code::{FindingCode, Severity};
pub use finding::Finding;
pub use report::{Gpu, Report};
pub use requirement::{Requirement, UnknownRequirement};
pub use terminal::Coloured;
