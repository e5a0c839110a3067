//! Reading files of unknown size and kind, without waiting for a writer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// The most that is read of a file, in bytes; files in `/proc` and `/sys` are far smaller.
const MOST: u64 = 1 << 20;

/// The beginning of a file as text; invalid UTF-8 is replaced.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options).open(path)
}

/// Makes opening and reading return at once. A pipe without a writer, or the kernel's log at its end, would block forever.
#[cfg(target_os = "linux")]
pub(crate) fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    /// The value on every architecture that CUDA supports.
    const O_NONBLOCK: i32 = 0o4000;
    options.custom_flags(O_NONBLOCK)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
