//! Replaces files as a whole: a reader finds the old content or the new, also after a crash of the writer.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

use atomic_write_file::AtomicWriteFile;

use crate::files;

/// Lets `write` fill a temporary file in the folder of `path` and renames it to `path`.
///
/// An existing file keeps its mode and, where the system allows it, its owner; a new one gets the mode that the umask allows. A
/// symbolic link is followed. On Linux the temporary file has no name while it is written, where the file system allows that, so a killed
/// writer leaves nothing behind, except between the file's linking and renaming.
///
/// # Errors
/// `InvalidInput` if `path` names something other than a regular file, and the errors of the file system and of `write`; a limit on the
/// size of files is one. The file is unchanged then.
pub(crate) fn replace<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let path = match path.is_symlink() {
        true => path.canonicalize()?,
        false => path.to_owned(),
    };
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            return Err(Error::new(ErrorKind::InvalidInput, "not a regular file").into());
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = AtomicWriteFile::open(&path)?;
    write(&mut Limited(file.as_file_mut()))?;
    Ok(file.commit()?)
}

/// A file whose size may be limited.
struct Limited<'a>(&'a mut File);

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        files::write_all(self.0, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
