//! Files that are whole or not there, and files of whole lines.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::OutputError;

/// Writes a file beside `path` and puts it in its place. What is no file, such as a device or a pipe, is written to and stays.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let failed = |error| OutputError::at(path, &error);
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        let opened = fs::File::options().write(true).open(path);
        let written = opened.and_then(|mut file| file.write_all(bytes));
        return written.map_err(failed);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{number}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = fs::File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| fs::rename(&part, path));
    if replaced.is_err() {
        // What is left of it helps nobody; the error that led here is the one to tell.
        let _ = fs::remove_file(&part);
    }
    replaced.map_err(failed)
}

/// The first line of a text that somebody else has written, as far as a record of bounded size can take it: 1 KiB.
pub(crate) fn first_line(text: &str) -> &str {
    const MOST: usize = 1024;
    let line = text.lines().next().unwrap_or_default();
    let mut ends = (0..=MOST.min(line.len())).rev();
    let end = ends.find(|end| line.is_char_boundary(*end));
    line.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// A file of lines, each written whole by one call, so that a process that is killed leaves whole lines. Nobody else writes to it.
#[derive(Debug)]
pub(crate) struct LineFile {
    path: PathBuf,
    file: fs::File,
    length: u64,
    /// In bytes; a file that would become longer is put aside.
    most: Option<u64>,
    /// A line was cut off, by a full disk or by the machine's end: the next one begins on a line of its own.
    is_cut_off: bool,
}

impl LineFile {
    /// Goes on with the file at `path`, or creates it.
    pub(crate) fn open(path: &Path, most: Option<u64>) -> io::Result<Self> {
        let mut file = create(path)?;
        let there = file.metadata()?;
        let length = there.len();
        // A device or a pipe cannot be put aside.
        let most = most.filter(|_| there.is_file());
        let mut last = *b"\n";
        if length > 0 && file.seek(io::SeekFrom::End(-1)).is_ok() {
            file.read_exact(&mut last)?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            length,
            most,
            is_cut_off: last != *b"\n",
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until what was written is on the disk. Where there is none, as with a pipe, there is nothing to wait for.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.file.sync_data() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Writes a line, which ends with a line feed.
    pub(crate) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let longer = self.length.saturating_add(line.len() as u64);
        if self.length > 0 && self.most.is_some_and(|most| longer > most) {
            self.rotate()?;
        }
        if self.is_cut_off {
            self.file.write_all(b"\n")?;
            self.length += 1;
            self.is_cut_off = false;
        }
        let written = self.file.write_all(line);
        match &written {
            Ok(()) => self.length += line.len() as u64,
            Err(_) => {
                let length = self.file.metadata().map_or(self.length, |file| file.len());
                self.is_cut_off = length != self.length;
                self.length = length;
            }
        }
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut former = self.path.clone().into_os_string();
        former.push(".1");
        match fs::rename(&self.path, former) {
            // Somebody has moved it away, or the last attempt ended here.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.file = create(&self.path)?;
        (self.length, self.is_cut_off) = (0, false);
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<fs::File> {
    fs::File::options()
        .append(true)
        .create(true)
        .read(true)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headroom-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_line_that_was_cut_off_stands_alone() {
        let folder = folder("cut-off");
        let path = folder.join("lines");
        fs::write(&path, "one\ntw").unwrap();
        let mut file = LineFile::open(&path, None).unwrap();
        file.append(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntw\nthree\n");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn two_files_are_never_longer_than_asked_for() {
        let folder = folder("rotated");
        let path = folder.join("lines");
        let mut file = LineFile::open(&path, Some(100)).unwrap();
        for i in 0..50 {
            file.append(format!("line {i:04}\n").as_bytes()).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= 100);
        }
        let both = fs::read_to_string(folder.join("lines.1")).unwrap()
            + &fs::read_to_string(&path).unwrap();
        assert!(both.ends_with("line 0049\n") && both.lines().count() >= 10);
        assert!(both.lines().all(|line| line.len() == 9));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let folder = folder("moved");
        let path = folder.join("lines");
        let mut file = LineFile::open(&path, Some(20)).unwrap();
        file.append(b"0123456789\n").unwrap();
        fs::remove_file(&path).unwrap();
        for _ in 0..3 {
            file.append(b"0123456789\n").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "0123456789\n");
        fs::remove_dir_all(folder).unwrap();
    }

    /// A socket stands for all that is no file: it can neither be opened nor put aside.
    #[test]
    #[cfg(unix)]
    fn what_is_no_file_stays() {
        use std::os::unix::fs::FileTypeExt;
        let folder = folder("special");
        let path = folder.join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        replace(&path, b"text").unwrap_err();
        let kind = fs::metadata(&path).unwrap().file_type();
        assert!(kind.is_socket());
        assert_eq!(
            LineFile::open(Path::new("/dev/null"), Some(1))
                .unwrap()
                .most,
            None
        );
        fs::remove_dir_all(folder).unwrap();
    }

    /// `/dev/full` is a disk that is.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_an_error_and_nothing_else() {
        let mut file = LineFile::open(Path::new("/dev/full"), None).unwrap();
        for _ in 0..3 {
            let error = file.append(b"line\n").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
