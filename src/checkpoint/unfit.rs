use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::CheckpointError;

/// Why a checkpoint cannot be used.
#[derive(Debug)]
pub(super) enum Unfit {
    /// What is wrong with it. It will not get better, and an older one may be used.
    Damaged(String),
    /// It is of another version.
    Version(u32),
    /// It could not be read, and may be intact.
    Unread(CheckpointError),
}

impl Unfit {
    /// A file that is not there is damage; one that cannot be read is not.
    pub(super) fn reading(file: &str) -> impl FnOnce(CheckpointError) -> Self {
        move |error| match error {
            CheckpointError::File { reason, .. }
                if matches!(reason.kind(), NotFound | NotADirectory) =>
            {
                Self::Damaged(format!("{file}: {reason}"))
            }
            other => Self::Unread(other),
        }
    }

    pub(super) fn into_error(self, path: &Path) -> CheckpointError {
        match self {
            Self::Damaged(problem) => CheckpointError::damaged(path, problem),
            Self::Version(found) => CheckpointError::Version {
                path: path.to_owned(),
                found,
                supported: VERSION,
            },
            Self::Unread(error) => error,
        }
    }
}

/// Of a checkpoint's JSON files.
pub(super) const VERSION: u32 = 1;

/// Reads a JSON file. Its version comes first, because another one has other fields.
pub(super) fn read_json<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<T, Unfit> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let wrong = |error: serde_json::Error| Unfit::Damaged(format!("{file}: {error}"));
    match serde_json::from_slice(bytes).map_err(wrong)? {
        Head { version: VERSION } => serde_json::from_slice(bytes).map_err(wrong),
        Head { version } => Err(Unfit::Version(version)),
    }
}
