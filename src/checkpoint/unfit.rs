use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::CheckpointError;

/// Of a checkpoint's JSON files. In version 1 rank 0 wrote all state.
pub(super) const VERSION: u32 = 2;

/// The error of reading a file of the checkpoint at `path`. A file that is not there is damage; one that cannot be read may be intact.
pub(super) fn unread(path: &Path, file: &str) -> impl FnOnce(CheckpointError) -> CheckpointError {
    move |error| match error {
        CheckpointError::File { reason, .. }
            if matches!(reason.kind(), NotFound | NotADirectory) =>
        {
            CheckpointError::damaged(path, format!("{file}: {reason}"))
        }
        other => other,
    }
}

/// Reads a JSON file of the checkpoint at `path`. Its version comes first, because another one has other fields.
pub(super) fn read_json<T: DeserializeOwned>(
    path: &Path,
    file: &str,
    bytes: &[u8],
) -> Result<T, CheckpointError> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let wrong =
        |error: serde_json::Error| CheckpointError::damaged(path, format!("{file}: {error}"));
    match serde_json::from_slice(bytes).map_err(wrong)? {
        Head { version: VERSION } => serde_json::from_slice(bytes).map_err(wrong),
        Head { version } => Err(CheckpointError::Version {
            path: path.to_owned(),
            found: version,
            supported: VERSION,
        }),
    }
}
