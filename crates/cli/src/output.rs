//! What the program reads and prints, and the status with which it ends.

use std::error::Error;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write, stderr, stdout};
use std::path::Path;

use bytesize::ByteSize;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Good,
    Findings,
    BadInput,
    #[cfg(feature = "dry-run")]
    DryRun(super::dry_run::Outcome),
}

impl Status {
    pub fn number(self) -> i32 {
        match self {
            Self::Good => 0,
            Self::Findings => 1,
            Self::BadInput => 2,
            #[cfg(feature = "dry-run")]
            Self::DryRun(outcome) => outcome as i32,
        }
    }

    /// `Findings` if there are any.
    pub fn of(has_findings: bool) -> Self {
        match has_findings {
            true => Self::Findings,
            false => Self::Good,
        }
    }
}

/// Writes to standard output. It is no error if the reader has closed the pipe.
pub fn print(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.map_err(|error| format!("cannot write the output: {error}"))?),
    }
}

/// A line on standard error.
pub fn say(label: &str, text: &str) {
    // Nothing can be said where this fails.
    let _ = writeln!(stderr(), "{label}: {}", plain(text));
}

/// A path, a name or a file may hold escape sequences.
pub fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A regular file and its length: a device may have no end, and a pipe no writer.
pub fn open(path: &Path) -> Result<(File, u64)> {
    let wrong = |why: &dyn Display| format!("cannot read {}: {why}", path.display());
    let there = fs::metadata(path).map_err(|error| wrong(&error))?;
    if !there.is_file() {
        return Err(wrong(&"not a regular file").into());
    }
    let file = File::open(path).map_err(|error| wrong(&error))?;
    Ok((file, there.len()))
}

/// Reads to the end, which must come within `most` bytes.
pub fn read_all(from: impl Read, most: u64, name: &dyn Display) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = from.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("cannot read {name}: it has more than {}", ByteSize(most)).into());
    }
    Ok(bytes)
}
