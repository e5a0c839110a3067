//! Replaces files as a whole: a reader finds the old content or the new, also after a crash of the writer.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use tempfile::NamedTempFile;

const SUFFIX: &str = ".part";

/// Lets `write` fill a temporary file in the folder of `path` and renames it to `path`.
///
/// An existing file keeps its mode and, where the system allows it, its owner; a new one gets the mode that the umask allows. A
/// symbolic link is followed. Temporary files of killed writers are removed; those of live writers, which hold a lock, stay.
///
/// # Errors
/// `InvalidInput` if `path` names something other than a regular file, and the errors of the file system and of `write`. The file
/// is unchanged then.
pub(crate) fn replace<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut NamedTempFile) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let path = match path.is_symlink() {
        true => path.canonicalize()?,
        false => path.to_owned(),
    };
    let existing = existing(&path)?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    remove_stale(folder, &prefix);
    let mut file = temporary(folder, &prefix)?;
    write(&mut file)?;
    if let Some(existing) = existing {
        // Only root may change the owner.
        #[cfg(unix)]
        let _ = {
            use std::os::unix::fs::{MetadataExt, fchown};
            fchown(file.as_file(), Some(existing.uid()), Some(existing.gid()))
        };
        file.as_file().set_permissions(existing.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

fn existing(path: &Path) -> Result<Option<Metadata>> {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(Error::new(ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A new temporary file, locked until it is closed.
fn temporary(folder: &Path, prefix: &OsStr) -> Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The umask still applies.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    loop {
        let file = builder.tempfile_in(folder)?;
        // Where the file system has no locks, no writer can take the file for stale.
        let _ = file.as_file().lock();
        // Another writer may have removed it as stale before it was locked.
        if file.path().exists() {
            return Ok(file);
        }
    }
}

/// Removes temporary files that nobody has locked. Failures are ignored.
fn remove_stale(folder: &Path, prefix: &OsStr) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = (name.as_encoded_bytes())
            .strip_prefix(prefix.as_encoded_bytes())
            .and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
        let is_ours = random.is_some_and(|random| random.iter().all(u8::is_ascii_alphanumeric));
        if is_ours
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            // While the lock is held, so that a writer that waits for it finds the file removed.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
