//! What can go wrong with files: samples on their way into a batch, saved runs, and reports.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::training::listed;
use crate::files::shown;

/// Samples cannot be read, or a loader does not continue a saved run. Settings that cannot be used, batches that are not what was declared, and
/// panics are [`Invalid`](super::Invalid); [`is_data`](super::Error::is_data) holds for both.
///
/// ```
/// # #[cfg(feature = "data")] {
/// use candle_headroom::Error;
/// use candle_headroom::data::Lines;
/// use candle_headroom::error::DataError;
///
/// /// Whether a file is missing, so that it can be fetched.
/// fn is_missing(error: &DataError) -> bool {
///     match error {
///         DataError::File { reason: Some(reason), .. } => reason.kind() == std::io::ErrorKind::NotFound,
///         _ => false,
///     }
/// }
///
/// let Err(Error::Data(error)) = Lines::open("/no/such/folder/train.txt") else { panic!("a file") };
/// assert!(is_missing(&error));
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A sample cannot be read.
    #[error("{dataset}: sample {index} cannot be read: {reason}")]
    #[non_exhaustive]
    Sample {
        /// The dataset.
        dataset: String,
        /// The sample's index in it.
        index: usize,
        /// Why not.
        reason: BoxedError,
    },
    /// A file does not hold what it should, or cannot be read.
    #[error("{}{}: {problem}", path.display(), at(*.offset))]
    #[non_exhaustive]
    File {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes from its start, if it is one place.
        offset: Option<u64>,
        /// What is wrong.
        problem: String,
        /// The operating system's error, if it is one.
        reason: Option<io::Error>,
    },
    /// A loader does not continue where the saved run stopped: it is another one, or stands elsewhere. Nothing was trained.
    #[error("{0}")]
    Position(String),
}

impl DataError {
    /// The saved run did not have this loader, and no loader continues those that it had.
    pub(crate) fn renamed(loader: &str, saved: &[String]) -> Self {
        Self::Position(format!(
            "the saved run did not read loader `{loader}`, and no loader continues `{}`: give the loader its saved name with `.name(…)`, \
             resume the saved loaders first, or build a new one with `.accept_changed_data()`",
            saved.join("`, `")
        ))
    }

    pub(crate) fn file(
        path: &Path,
        offset: impl Into<Option<u64>>,
        problem: impl Into<String>,
    ) -> Self {
        Self::File {
            path: shown(path),
            offset: offset.into(),
            problem: problem.into(),
            reason: None,
        }
    }

    pub(crate) fn io(path: &Path, offset: impl Into<Option<u64>>, reason: io::Error) -> Self {
        Self::File {
            path: shown(path),
            offset: offset.into(),
            problem: reason.to_string(),
            reason: Some(reason),
        }
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

/// An error of any type.
///
/// ```
/// use candle_headroom::error::BoxedError;
///
/// fn label(text: &str) -> Result<u32, BoxedError> {
///     match text {
///         "cat" => Ok(0),
///         "dog" => Ok(1),
///         other => Err(format!("unknown label `{other}`").into()),
///     }
/// }
///
/// assert_eq!(label("cow").unwrap_err().to_string(), "unknown label `cow`");
/// ```
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// A checkpoint that was passed over, and why.
///
/// ```
/// # #[cfg(feature = "checkpoint")] {
/// use candle_headroom::Error;
/// use candle_headroom::checkpoint::Checkpoint;
/// use candle_headroom::error::CheckpointError;
///
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path();
/// let damaged = folder.join("step-000000004"); // `folder` is "run-7"
/// std::fs::create_dir(&damaged)?;
/// std::fs::write(damaged.join("manifest.json"), "")?;
/// let Err(Error::Checkpoint(error)) = Checkpoint::latest(folder) else { panic!("damaged") };
/// let CheckpointError::NoneIntact { skipped, .. } = *error else { panic!("{error}") };
/// assert_eq!(skipped[0].path, damaged);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

impl Skipped {
    pub(crate) fn new(path: &Path, problem: impl fmt::Display) -> Self {
        Self {
            path: shown(path),
            problem: problem.to_string(),
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

/// A checkpoint cannot be written, found or loaded. After an error of loading nothing has changed. Settings, names and values that cannot be
/// used, and another rank's error, are [`Invalid`](super::Invalid); [`is_checkpoint`](super::Error::is_checkpoint) holds for both.
///
/// ```
/// # #[cfg(feature = "checkpoint")] {
/// use candle_headroom::Error;
/// use candle_headroom::checkpoint::Checkpoints;
/// use candle_headroom::error::CheckpointError;
///
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run-7");
/// let running = Checkpoints::builder(&folder).open()?; // `folder` is "run-7"
/// let error = Checkpoints::builder(&folder).open().unwrap_err();
/// let Error::Checkpoint(error) = error else { panic!("{error}") };
/// assert!(matches!(*error, CheckpointError::InUse(_)));
/// # drop(running);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// An operation on a file or a folder was refused: by the operating system, or because another version of this crate wrote it, or a link is
    /// there. A checkpoint that could not be read may be intact.
    #[error("cannot {action} {}: {reason}", path.display())]
    #[non_exhaustive]
    File {
        /// The operation, such as `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error, or this crate's.
        reason: io::Error,
    },
    /// Another `Checkpoints` writes to the folder, in this process or another one.
    #[error(
        "{} is in use by another `Checkpoints`: end that run, or give this one a folder of its own; the ranks of one run share it with \
         `Checkpoints::builder(folder).group(&group)`",
        .0.display()
    )]
    InUse(PathBuf),
    /// Files are not what the manifest says, or cannot be read.
    #[error("{} is damaged: {problem}; load an older checkpoint, or another copy of this one", path.display())]
    #[non_exhaustive]
    Damaged {
        /// The checkpoint, or a model's file.
        path: PathBuf,
        /// What is wrong, with the file's name.
        problem: String,
    },
    /// All checkpoints of a folder are damaged.
    #[error(
        "{} has no intact checkpoint: {}; restore one from a copy, or begin a new run in another folder",
        folder.display(), list(.skipped)
    )]
    #[non_exhaustive]
    NoneIntact {
        /// The folder.
        folder: PathBuf,
        /// The damaged ones, newest first.
        skipped: Vec<Skipped>,
    },
    /// A saved model does not fit this one; every difference is listed.
    #[error(
        "the model in {} does not fit{}{}{}; to load what does, use `load_model` with `allow_missing`, `allow_unexpected` or `rename`",
        path.display(), listed("missing there", .missing), listed("unexpected", .unexpected), listed("different", .unfit)
    )]
    #[non_exhaustive]
    Differs {
        /// The checkpoint or file.
        path: PathBuf,
        /// Parameters that the model has and the file does not.
        missing: Vec<String>,
        /// Tensors that the file has and the model does not.
        unexpected: Vec<String>,
        /// Parameters whose shape or type differs, with both.
        unfit: Vec<String>,
    },
}

impl CheckpointError {
    /// An error of the operating system, for `map_err`.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = shown(path);
        move |reason| Self::File {
            action,
            path,
            reason,
        }
    }

    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged {
            path: shown(path),
            problem: problem.into(),
        }
    }
}

fn list(skipped: &[Skipped]) -> String {
    let texts: Vec<_> = skipped.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// A report, trace or log cannot be written or read.
///
/// ```
/// use candle_headroom::{Error, Timeline};
///
/// let error = Timeline::new().save_trace("/no/such/folder/trace.json").unwrap_err();
/// let Error::Output(output) = error else { panic!("{error}") };
/// assert_eq!((output.action, output.target.as_str()), ("write", "/no/such/folder/trace.json"));
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
