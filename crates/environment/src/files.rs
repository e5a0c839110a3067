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
    with_flags(options, false)
}

/// As [`without_waiting`], and opening a symbolic link fails; on Unix only.
pub fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    with_flags(options, true)
}

fn with_flags(options: &mut OpenOptions, refuses_links: bool) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let links = match refuses_links {
            true => OFlags::NOFOLLOW,
            false => OFlags::empty(),
        };
        let flags = (OFlags::NONBLOCK | links).bits() as i32;
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags);
    }
    #[cfg(not(unix))]
    let _ = refuses_links;
    options
}
