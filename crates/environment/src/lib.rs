//! Is this machine fit for candle, and if not, what helps? See [`Environment::check`].
//!
//! `probe` reads files and libraries, each subject in a thread of its own, and `judge` draws conclusions; what concerns nobody else is read
//! and judged in one file (`host`, `log`, `toolkit`). The findings' texts are a table (`code`). Nothing here panics, prints or fails: what
//! cannot be read is a finding.
//!
//! This package needs no candle, so that it can be built and used without it. `candle_headroom::environment` is this package. The modules
//! that the documentation hides are shared with candle-headroom's other packages and may change in any release.

#![deny(missing_docs, unsafe_code, clippy::undocumented_unsafe_blocks)]
// It neither prints nor ends the process, and what cannot be is an error: promise 10.
#![deny(
    clippy::dbg_macro,
    clippy::exit,
    clippy::print_stderr,
    clippy::print_stdout
)]
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]
#![warn(missing_debug_implementations)]

#[allow(unsafe_code, reason = "`Environment::root` names libraries to run")]
mod check;
mod code;
#[doc(hidden)]
pub mod facts;
#[doc(hidden)]
pub mod files;
mod finding;
mod host;
mod judge;
mod log;
mod machine;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
#[allow(unsafe_code, reason = "calls NVML")]
pub mod nvml;
#[doc(hidden)]
#[allow(unsafe_code, reason = "loads libraries, which runs their code")]
pub mod patience;
#[allow(unsafe_code, reason = "calls libcuda, NVML and NCCL")]
mod probe;
mod redact;
mod report;
#[allow(unsafe_code, reason = "calls libcuda")]
mod smoke;
mod source;
mod toolkit;
mod versions;

pub use bytesize::ByteSize;

pub use check::Environment;
pub use code::{FindingCode, Severity};
pub use finding::Finding;
pub use machine::Gpu;
pub use nvml::Neighbour;
pub use report::{Report, Requirement, UnknownRequirement};
pub use versions::Versions;

use finding::Findings;
use machine::Facts;
use probe::{Answer, Reply};
use source::Source;
