//! Errors of the monitor, the timeline and the incident log.

use std::io;
use std::path::Path;

/// A report, trace or log cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {target}: {reason}")]
#[non_exhaustive]
pub struct OutputError {
    /// `write` or `read`.
    pub action: &'static str,
    /// The path, or for a caller's own writer what was written to it.
    pub target: String,
    /// The message of the operating system or of the caller's writer.
    pub reason: String,
    /// The kind of the error.
    pub kind: io::ErrorKind,
}

impl OutputError {
    pub(crate) fn of(target: &str, error: &io::Error) -> Self {
        Self {
            action: "write",
            target: target.to_owned(),
            reason: error.to_string(),
            kind: error.kind(),
        }
    }

    pub(crate) fn at(path: &Path, error: &io::Error) -> Self {
        Self::of(&path.display().to_string(), error)
    }

    pub(crate) fn reading(path: &Path, error: &io::Error) -> Self {
        Self {
            action: "read",
            ..Self::at(path, error)
        }
    }
}

/// A [`Monitor`](crate::Monitor) cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The interval is 0.
    #[error("`interval` must be above 0, got 0")]
    Interval,
    /// The history is 0.
    #[error("`history` must be at least 1 sample, got 0")]
    History,
    /// The history does not fit into memory, with this many samples.
    #[error("`history` of {0} samples, each about 400 bytes, does not fit into memory: keep fewer")]
    HistoryTooLong(usize),
    /// This threshold, as it is displayed, can never be crossed, or always is.
    #[error(
        "`threshold` is out of range, got {0}: a share must be in (0, 1], any other value above 0"
    )]
    Threshold(String),
    /// The operating system starts no further thread, for this reason.
    #[error("cannot start the monitor's thread: {0}")]
    Thread(String),
}
