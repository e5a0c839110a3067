//! What can go wrong between a file and a batch.

use std::io;
use std::path::{Path, PathBuf};

/// Samples cannot be read, or are not what was declared. Settings that cannot be used, samples that cannot be made into a batch, and panics
/// are [`Invalid`](super::Invalid), for which [`is_data`](super::Error::is_data) holds.
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
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;
