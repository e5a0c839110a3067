use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::error::{OutputError, Result};
use crate::replace::replace;

/// Replaces a file as a whole. Devices and pipes are written to in place.
pub(super) fn save(path: &Path, text: &str) -> Result<()> {
    let saved = match path.metadata() {
        Ok(there) if !there.is_file() => {
            let file = File::options().write(true).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
        }
        _ => replace(path, |file| file.write_all(text.as_bytes())),
    };
    Ok(saved.map_err(|error| OutputError::at(path, &error))?)
}
