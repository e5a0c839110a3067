//! What watching can fail on.

use std::io;
use std::path::{Path, PathBuf};

/// Something cannot be written: a report, a trace, an incident.
///
/// ```
/// use candle_headroom::{Error, Timeline};
///
/// let Err(Error::Output(error)) = Timeline::new().save_trace("/no/such/folder/trace.json") else { unreachable!() };
/// assert_eq!(error.kind, std::io::ErrorKind::NotFound);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot write {target}: {reason}")]
#[non_exhaustive]
pub struct OutputError {
    /// What was to be written: a path, or what it is where the place is the caller's.
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
}
