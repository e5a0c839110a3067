//! Errors of the monitor, the timeline and the incident log.

use std::io;
use std::path::{Path, PathBuf};

/// A report, trace or log cannot be written or read.
///
/// ```
/// use candle_headroom::{Error, Timeline};
///
/// let Err(Error::Output(error)) = Timeline::new().save_trace("/no/such/folder/trace.json") else { unreachable!() };
/// assert_eq!(error.kind, std::io::ErrorKind::NotFound);
/// ```
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
    /// The path, if the target is a file.
    pub path: Option<PathBuf>,
}

impl OutputError {
    pub(crate) fn of(target: &str, error: &io::Error) -> Self {
        Self {
            action: "write",
            target: target.to_owned(),
            reason: error.to_string(),
            kind: error.kind(),
            path: None,
        }
    }

    pub(crate) fn at(path: &Path, error: &io::Error) -> Self {
        Self {
            path: Some(path.to_owned()),
            ..Self::of(&path.display().to_string(), error)
        }
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
    /// The history does not fit into memory.
    #[error(
        "`history` does not fit into memory: {samples} samples of about 400 bytes for each source; keep fewer"
    )]
    #[non_exhaustive]
    HistoryTooLong {
        /// The number of samples.
        samples: usize,
    },
    /// A threshold can never be crossed, or always is.
    #[error(
        "`threshold` is out of range, got {threshold}: a share must be in (0, 1], any other value above 0"
    )]
    #[non_exhaustive]
    Threshold {
        /// The threshold as it is displayed.
        threshold: String,
    },
    /// The operating system starts no further thread.
    #[error("cannot start the monitor's thread: {reason}")]
    #[non_exhaustive]
    Thread {
        /// The message of the operating system.
        reason: String,
    },
}
