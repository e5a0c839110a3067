//! What can go wrong with files: samples on their way into a batch, saved runs, and reports.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;

use super::training::listed;

/// Samples cannot be read, or are not what was declared. Settings that cannot be used, samples that cannot be made into a batch, and panics
/// are [`Invalid`](super::Invalid), for which [`is_data`](super::Error::is_data) holds.
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
    /// More samples failed than `skip_failures` allows; the last one with this error.
    #[error("{reason}; {skipped} samples were skipped before, as many as `skip_failures` allows")]
    #[non_exhaustive]
    TooManySkipped {
        /// Number of samples that were skipped.
        skipped: usize,
        /// The error of the sample that was not.
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
    /// A saved position belongs to another loader: each difference, with both values.
    #[error(
        "the saved position does not fit loader `{loader}`: {}; build the loader as the run did that saved it, or with \
         `.accept_changed_data()`",
        .differences.join(", ")
    )]
    #[non_exhaustive]
    Position {
        /// The loader.
        loader: String,
        /// What differs.
        differences: Vec<String>,
    },
    /// A trainer whose state was loaded got a batch that does not begin where its saved run stopped. Nothing was trained.
    #[error(
        "the trainer's saved run stopped before {saved} of loader `{loader}`, and the loader was at {found}: call \
         `loader.resume(&trainer)` after the trainer's state is loaded, or build the loader with `.accept_changed_data()`"
    )]
    #[non_exhaustive]
    NotResumed {
        /// The loader.
        loader: String,
        /// The place of the saved run's next batch.
        saved: String,
        /// Where the loader stood before the batch.
        found: String,
    },
    /// A trainer whose state was loaded got a loader that the saved run did not have, and no loader continues what it had. Nothing was
    /// trained.
    #[error(
        "the saved run did not read loader `{loader}`, and no loader continues {}: give the loader its saved name with `.name(…)`, resume \
         the saved loaders first, or build a new one with `.accept_changed_data()`",
        .saved.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    )]
    #[non_exhaustive]
    Renamed {
        /// The loader.
        loader: String,
        /// The names of the saved run's loaders.
        saved: Vec<String>,
    },
    /// A batch is not what was declared.
    #[error("{dataset}: {}tensor `{tensor}` {found}, expected {expected}", of(*.index))]
    #[non_exhaustive]
    Unexpected {
        /// The dataset.
        dataset: String,
        /// The sample's index in it, if it is one sample's fault.
        index: Option<usize>,
        /// The tensor, by the name or the place that its check has.
        tensor: String,
        /// What it has.
        found: String,
        /// What was declared.
        expected: String,
    },
}

impl DataError {
    pub(crate) fn renamed(loader: &str, saved: Vec<String>) -> Self {
        Self::Renamed {
            loader: loader.to_owned(),
            saved,
        }
    }

    pub(crate) fn file(
        path: &Path,
        offset: impl Into<Option<u64>>,
        problem: impl Into<String>,
    ) -> Self {
        Self::File {
            path: path.to_owned(),
            offset: offset.into(),
            problem: problem.into(),
            reason: None,
        }
    }

    pub(crate) fn io(path: &Path, offset: impl Into<Option<u64>>, reason: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            offset: offset.into(),
            problem: reason.to_string(),
            reason: Some(reason),
        }
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

fn of(index: Option<usize>) -> String {
    index.map_or_else(String::new, |index| format!("sample {index}, "))
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
            path: path.to_owned(),
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
/// used are [`Invalid`](super::Invalid), for which [`is_checkpoint`](super::Error::is_checkpoint) holds.
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
    /// The operating system refused an operation on a file or a folder. A checkpoint that could not be read may be intact.
    #[error("cannot {action} {}: {reason}", path.display())]
    #[non_exhaustive]
    File {
        /// The operation, such as `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        reason: io::Error,
    },
    /// Another `Checkpoints` writes to the folder, in this process or another one.
    #[error(
        "{} is in use by another `Checkpoints`: end that run, or give this one a folder of its own; the ranks of one run share it with \
         `Checkpoints::builder(folder).group(&group)`",
        .0.display()
    )]
    InUse(PathBuf),
    /// The lock of a run's folder is a link or no regular file. Nothing was written to it.
    #[error(
        "{} is a link or no regular file, and a run writes its lock there: remove it, or use another folder",
        .0.display()
    )]
    ForeignLock(PathBuf),
    /// The folder holds checkpoints, and the run began without them.
    #[error(
        "{} holds step {step}, and this run did not resume from it: call `resume` before the first step, or use another folder",
        folder.display()
    )]
    #[non_exhaustive]
    NotResumed {
        /// The folder.
        folder: PathBuf,
        /// The highest step in it.
        step: u64,
    },
    /// Files are not what the manifest says, or cannot be read.
    #[error("{} is damaged: {problem}; load an older checkpoint, or another copy of this one", path.display())]
    #[non_exhaustive]
    Damaged {
        /// The checkpoint, or a model's file.
        path: PathBuf,
        /// What is wrong, with the file's name.
        problem: String,
    },
    /// Another version of this crate wrote the checkpoint, in a format that this one does not read.
    #[error(
        "{} has version {found}, this crate reads version {supported}: use the version that wrote it, or move it away",
        path.display()
    )]
    #[non_exhaustive]
    Version {
        /// The checkpoint.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this crate reads.
        supported: u32,
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
    /// Loading needs more host memory than there is.
    #[error(
        "loading {} needs {} of host memory, and there are {}: free memory, or raise the limit of `DeviceMemory::host()`",
        path.display(), ByteSize(*bytes), ByteSize(*available)
    )]
    #[non_exhaustive]
    Memory {
        /// The checkpoint or file.
        path: PathBuf,
        /// The bytes that are needed.
        bytes: u64,
        /// The bytes that there are, within the limit and the machine's free memory.
        available: u64,
    },
    /// Another rank could not write a checkpoint.
    #[error("rank {rank} could not write a checkpoint: {reason}")]
    #[non_exhaustive]
    Peer {
        /// The rank.
        rank: usize,
        /// Its error, as text.
        reason: String,
    },
}

impl CheckpointError {
    /// An error of the operating system, for `map_err`.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |reason| Self::File {
            action,
            path,
            reason,
        }
    }

    /// What other ranks hear of a rank's error.
    pub(crate) fn peer(rank: usize, reason: String) -> Self {
        Self::Peer { rank, reason }
    }

    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
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
