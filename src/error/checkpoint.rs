//! What can go wrong when a run is saved or continued.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;

/// A checkpoint that was passed over, and why.
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
        path.display(), names("missing there", .missing), names("unexpected", .unexpected), names("different", .unfit)
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

fn names(what: &str, names: &[String]) -> String {
    match names {
        [] => String::new(),
        _ => format!("; {what}: {}", names.join(", ")),
    }
}
