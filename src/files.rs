//! Names of files, opening without waiting for a writer, and writing: where a file's size is limited, and as a whole.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

use atomic_write_file::AtomicWriteFile;

pub(crate) use candle_headroom_environment::system::{open, text, without_links};

/// An operation on a file or a folder of a checkpoint, or on the file of a timeline.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use std::io::ErrorKind;
///
/// use candle_headroom::Timeline;
/// use candle_headroom::testing::{FileFaults, FileOperation};
///
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path();
/// let faults = FileFaults::in_folder(folder).only(FileOperation::Write).at(0);
/// let armed = faults.failing_with(ErrorKind::StorageFull).arm(); // a full disk
/// assert!(Timeline::new().save_trace(folder.join("trace.json")).is_err());
/// assert_eq!(armed.fired(), 1);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileOperation {
    /// A file or folder is created.
    Create,
    /// Bytes are written.
    Write,
    /// A file or folder is flushed to the disk.
    Sync,
    /// A folder is renamed.
    Rename,
    /// A file or folder is removed.
    Remove,
    /// A checkpoint's file is read to be verified, or a tensor of it to be loaded. It is counted only with
    /// `FileFaults::only`.
    Read,
}

/// Whether a name, joined to a folder, is an entry of that folder.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_name = matches!(parts.next(), Some(Component::Normal(only)) if only == name);
    is_name && parts.next().is_none()
}

/// The text of a path that is a URL of an object.
pub(crate) fn url(path: &Path) -> Option<&str> {
    let url = path.to_str()?;
    let (scheme, _) = url.split_once("://")?;
    ["gs", "http", "https", "s3"]
        .contains(&scheme)
        .then_some(url)
}

/// A path as it may be shown: a URL without a query, which may be a signature, and without a password.
pub(crate) fn shown(path: &Path) -> PathBuf {
    let Some((scheme, rest)) = url(path).and_then(|url| url.split_once("://")) else {
        return path.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/{key}").into()
}

/// Writes all bytes. Beyond the limit on the size of files (`ulimit -f`) that is an error, also where Linux would end the process by
/// SIGXFSZ, which it sends to the thread that writes.
pub(crate) fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    let _blocked = size_signal::Blocked::new();
    file.write_all(bytes)
}

/// Replaces a file as a whole: a reader finds the old content or the new, also after a crash of the writer. Lets `write` fill a temporary
/// file in the folder of `path` and renames it to `path`.
///
/// An existing file keeps its mode and, where the system allows it, its owner; a new one gets the mode that the umask allows. A
/// symbolic link is followed. On Linux the temporary file has no name while it is written, where the file system allows that, so a killed
/// writer leaves nothing behind, except between the file's linking and renaming.
///
/// # Errors
/// `InvalidInput` if `path` names something other than a regular file, and the errors of the file system and of `write`; a limit on the
/// size of files is one. The file is unchanged then.
pub(crate) fn replace<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let path = match path.is_symlink() {
        true => path.canonicalize()?,
        false => path.to_owned(),
    };
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file").into());
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
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_all(self.0, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod size_signal {
    use std::mem::zeroed;
    use std::ptr::null_mut;

    use libc::sigset_t;

    /// SIGXFSZ does not reach this thread while this lives, and what came meanwhile is dropped.
    pub(super) struct Blocked {
        signal: sigset_t,
        before: sigset_t,
    }

    impl Blocked {
        pub(super) fn new() -> Self {
            // SAFETY: sets of signals are integers. The calls write to them, and fail only for signals that do not exist.
            unsafe {
                let (mut signal, mut before): (sigset_t, sigset_t) = (zeroed(), zeroed());
                libc::sigaddset(&mut signal, libc::SIGXFSZ);
                libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before);
                Self { signal, before }
            }
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {
            // SAFETY: the sets are initialized and outlive the calls. A signal that the caller had blocked stays as it was.
            unsafe {
                if libc::sigismember(&self.before, libc::SIGXFSZ) == 0 {
                    libc::sigtimedwait(&self.signal, null_mut(), &zeroed());
                    libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut());
                }
            }
        }
    }
}
