//! Replaces files as a whole: a reader finds the old content or the new, also after a crash of the writer.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

const SUFFIX: &str = ".part";

/// Lets `write` fill a temporary file in the folder of `path` and renames it to `path`.
///
/// An existing file keeps its mode and, where the system allows it, its owner; a new one gets the mode that the umask allows. A
/// symbolic link is followed. Temporary files that killed writers left for the same path are removed; those of live writers,
/// which hold a lock, stay.
///
/// # Errors
/// `InvalidInput` if `path` names something that is no regular file, and the errors of the file system and of `write`. The file
/// is unchanged then.
pub(crate) fn replace<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut NamedTempFile) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let path = followed(path)?;
    let existing = existing(&path)?;
    remove_stale(&path);
    let mut file = temporary(&path)?;
    write(&mut file)?;
    if let Some(existing) = existing {
        keep_access(file.as_file(), &existing)?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// The file that a symbolic link names, or the path itself.
fn followed(path: &Path) -> Result<PathBuf> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_symlink() => path.canonicalize(),
        _ => Ok(path.to_owned()),
    }
}

fn existing(path: &Path) -> Result<Option<Metadata>> {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(Error::new(ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What the names of a path's temporary files begin with.
fn prefix(path: &Path) -> std::ffi::OsString {
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

/// A new temporary file, locked until it is closed.
fn temporary(path: &Path) -> Result<NamedTempFile> {
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The umask still applies.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    loop {
        let file = builder.tempfile_in(folder(path))?;
        // Another writer may have removed it as stale before it was locked.
        if lock::hold(file.as_file()) {
            return Ok(file);
        }
    }
}

/// Removes the path's temporary files that nobody has locked. Failures are ignored.
fn remove_stale(path: &Path) {
    let prefix = prefix(path);
    let entries = std::fs::read_dir(folder(path)).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        let random = bytes
            .strip_prefix(prefix.as_encoded_bytes())
            .and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
        let is_ours = random.is_some_and(|random| random.iter().all(u8::is_ascii_alphanumeric));
        if is_ours
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(entry.path()).is_ok_and(|file| lock::is_free(&file))
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(unix)]
fn keep_access(file: &File, existing: &Metadata) -> Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};
    // Only root may change the owner.
    let _ = fchown(file, Some(existing.uid()), Some(existing.gid()));
    file.set_permissions(existing.permissions())
}

#[cfg(not(unix))]
fn keep_access(file: &File, existing: &Metadata) -> Result<()> {
    file.set_permissions(existing.permissions())
}

/// Locks that end with the process that holds them. `File::lock` does the same from Rust 1.89 on.
#[cfg(unix)]
mod lock {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    fn flocked(file: &File, operation: i32) -> bool {
        // SAFETY: `flock` reads no memory, and the descriptor is open as long as `file` is borrowed.
        unsafe { libc::flock(file.as_raw_fd(), operation) == 0 }
    }

    /// Locks a file and returns whether it still has a name. Where a file system has no locks, `is_free` is never true.
    pub(super) fn hold(file: &File) -> bool {
        flocked(file, libc::LOCK_EX);
        !file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    pub(super) fn is_free(file: &File) -> bool {
        flocked(file, libc::LOCK_EX | libc::LOCK_NB)
    }
}

/// On other systems no file is stale.
#[cfg(not(unix))]
mod lock {
    use std::fs::File;

    pub(super) fn hold(_: &File) -> bool {
        true
    }

    pub(super) fn is_free(_: &File) -> bool {
        false
    }
}
