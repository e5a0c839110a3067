//! Files of text: of lines, and as a whole.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex_lite::Regex;

use crate::error::{self, OutputError};
use crate::files::{self, replace};
use crate::testing::{FileOperation, inject_file};

/// The first line of a text, at most 1 KiB of it.
pub(crate) fn first_line(text: &str) -> &str {
    const MOST: usize = 1024;
    let line = text.lines().next().unwrap_or_default();
    let mut ends = (0..=MOST.min(line.len())).rev();
    ends.find_map(|end| line.get(..end)).unwrap_or_default()
}

/// The first line of a text for a file that others may read.
pub(crate) fn public_line(text: &str) -> Cow<'_, str> {
    public(first_line(text))
}

/// A text for a file that others may read: addresses without the user, the query and the fragment, which may be a key to what they name,
/// and no bearer token.
pub(crate) fn public(text: &str) -> Cow<'_, str> {
    static SECRETS: LazyLock<Result<Regex, regex_lite::Error>> = LazyLock::new(|| {
        Regex::new(
            r#"(?ix) (?<kept> \b bearer \s+) [^\s"',;]+
            | (?<scheme> \b [a-z][a-z0-9+.-]* ://) ([^\s/?\#@"']* @)? (?<place> [^\s?\#"'<>)]*) ([?\#] [^\s"'<>)]*)?"#,
        )
    });
    match &*SECRETS {
        Ok(secrets) => secrets.replace_all(text, "$kept$scheme$place"),
        Err(_) => Cow::Borrowed("<withheld>"),
    }
}

/// Reads a file; a device such as `/dev/zero` has no end.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::metadata(path)?.is_file() {
        true => fs::read(path),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Replaces a file as a whole. Devices and pipes are written to in place.
pub(crate) fn save(path: &Path, text: &str) -> error::Result<()> {
    let write = |file: &mut dyn Write| {
        inject_file(FileOperation::Write, path)?;
        file.write_all(text.as_bytes())
    };
    let saved = match path.metadata() {
        Ok(there) if !there.is_file() => {
            let file = File::options().write(true).open(path);
            file.and_then(|mut file| write(&mut file))
        }
        _ => replace(path, write),
    };
    Ok(saved.map_err(|error| OutputError::at(path, &error))?)
}

/// A file of lines with one writer. Each line is written by one call. The kernel can end that call early when the process is killed,
/// so the file may end in the beginning of a line, which `open` removes.
#[derive(Debug)]
pub(crate) struct LineFile {
    path: PathBuf,
    file: File,
    /// In bytes, up to the last whole line.
    length: u64,
    /// A file that would become longer, in bytes, is renamed.
    rotate_at: Option<u64>,
    is_regular: bool,
    /// A line was written in part and not removed yet.
    is_torn: bool,
}

impl LineFile {
    /// Opens the file to append to it, or creates it.
    pub(crate) fn open(path: &Path, rotate_at: Option<u64>) -> io::Result<Self> {
        let mut options = File::options();
        let file = options.append(true).create(true).read(true).open(path)?;
        let metadata = file.metadata()?;
        let mut lines = Self {
            path: path.to_owned(),
            file,
            length: metadata.len(),
            rotate_at,
            is_regular: metadata.is_file(),
            is_torn: false,
        };
        if lines.is_regular {
            lines.repair()?;
        }
        Ok(lines)
    }

    /// Waits until all lines are on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.is_regular {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }

    /// Writes a line, which must end with a line feed.
    pub(crate) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let longer = self.length.saturating_add(line.len() as u64);
        // A device or a pipe cannot be renamed.
        let rotate_at = self
            .rotate_at
            .filter(|_| self.is_regular && self.length > 0);
        if rotate_at.is_some_and(|most| longer > most) {
            self.rotate()?;
        }
        self.write(line)
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.length)?;
            self.is_torn = false;
        }
        let written = files::write_all(&mut self.file, line);
        match &written {
            Ok(()) => self.length += line.len() as u64,
            // A full disk may have taken a part of the line.
            Err(_) => self.is_torn = self.is_regular && self.file.set_len(self.length).is_err(),
        }
        written
    }

    /// Removes an incomplete last line, or ends it if this crate did not write it: the file may be another program's.
    fn repair(&mut self) -> io::Result<()> {
        const MOST: u64 = 64 << 10;
        let from = self.length.saturating_sub(MOST);
        let mut tail = Vec::new();
        self.file.seek(SeekFrom::Start(from))?;
        self.file.read_to_end(&mut tail)?;
        let end = tail.iter().rposition(|byte| *byte == b'\n');
        let torn = tail.split_off(end.map_or(0, |end| end + 1));
        let Some(first) = torn.first() else {
            return Ok(());
        };
        let is_whole_line = end.is_some() || from == 0;
        if !is_whole_line || *first != b'{' {
            return self.write(b"\n");
        }
        self.length -= torn.len() as u64;
        self.file.set_len(self.length)?;
        let (bytes, file) = (torn.len(), self.path.display());
        tracing::warn!(bytes, %file, "removed an incomplete last line");
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut former = self.path.clone().into_os_string();
        former.push(".1");
        // The file may have been moved away or renamed before: without lines of its own it must not replace the former one.
        if fs::metadata(&self.path).is_ok_and(|file| file.len() > 0) {
            fs::rename(&self.path, former)?;
        }
        *self = Self::open(&self.path, self.rotate_at)?;
        Ok(())
    }
}
