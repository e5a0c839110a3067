//! Is this machine fit for candle, and if not, what helps? See [`Environment::check`].
//!
//! `probe` reads files and libraries, `judge` draws conclusions; what concerns nobody else is read and judged in one file (`host`, `log`,
//! `toolkit`). The findings' texts are a table (`code`). Nothing here panics, prints or fails: what cannot be read is a finding.

mod built;
mod check;
mod code;
mod facts;
mod finding;
mod gather;
mod gpu;
mod host;
mod judge;
mod log;
mod obstacles;
mod probe;
mod redact;
mod reply;
mod report;
mod requirement;
mod smoke;
mod source;
mod terminal;
mod toolkit;
mod versions;
mod visible;

pub use check::Environment;
pub use code::{FindingCode, Severity};
pub use finding::Finding;
pub use gpu::Gpu;
pub use report::Report;
pub use requirement::{Requirement, UnknownRequirement};
pub use versions::Versions;

use facts::Facts;
use finding::Findings;
use reply::{Answer, Reply};
use source::Source;
