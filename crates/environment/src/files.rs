//! Reading files of unknown size and kind, without waiting for a writer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// The number of bytes that are read of a file; files in `/proc` and `/sys` are far smaller.
const MOST: u64 = 1 << 20;

/// The beginning of a file as text; invalid UTF-8 is replaced.
pub fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    without_waiting(File::options().read(true)).open(path)
}

/// Makes opening and reading return at once. A pipe without a writer, or the kernel's log at its end, would block forever.
pub fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        options,
        rustix::fs::OFlags::NONBLOCK.bits() as i32,
    );
    options
}
