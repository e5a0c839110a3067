//! Files that are whole or not there.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::error::OutputError;

/// Writes a file beside `path` and puts it in its place.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    let failed = |error| OutputError::at(path, &error);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = fs::File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| fs::rename(&part, path));
    if replaced.is_err() {
        // What is left of it helps nobody; the error that led here is the one to tell.
        let _ = fs::remove_file(&part);
    }
    replaced.map_err(failed)
}
