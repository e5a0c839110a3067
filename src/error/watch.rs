//! What watching can fail on.

use std::io;
use std::path::{Path, PathBuf};

/// Something cannot be written, or read back: a report, a trace, an incident.
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
    /// `write`, or `read`.
    pub action: &'static str,
    /// What was to be written or read: a path, or what it is where the place is the caller's.
    pub target: String,
    /// What the operating system, or the caller's writer, said.
    pub reason: String,
    /// The same for programs.
    pub kind: io::ErrorKind,
    /// The path, where it is a file's.
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

/// A [`Monitor`](crate::Monitor) cannot be started as asked.
///
/// ```
/// use std::time::Duration;
/// use candle_headroom::{Error, Monitor, MonitorError};
///
/// let Err(Error::Monitor(error)) = Monitor::builder().interval(Duration::ZERO).start() else { unreachable!() };
/// assert_eq!(*error, MonitorError::Interval);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// No time between samples.
    #[error("a monitor samples at an interval above 0")]
    Interval,
    /// Nothing would be kept.
    #[error("a monitor keeps at least 1 sample of each source")]
    History,
    /// More would be kept than there is memory for.
    #[error(
        "a history of {samples} samples of each source does not fit into memory: at some 400 bytes each, keep fewer"
    )]
    HistoryTooLong {
        /// How many were asked for.
        samples: usize,
    },
    /// A threshold that can never be passed, or always is.
    #[error(
        "a threshold of {threshold} is none: shares lie above 0 and up to 1, and all others are above 0"
    )]
    Threshold {
        /// The threshold, as it is written.
        threshold: String,
    },
    /// The operating system gives no further thread.
    #[error("the monitor's thread cannot be started: {reason}")]
    Thread {
        /// What the operating system said.
        reason: String,
    },
}
