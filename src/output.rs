//! Files that are whole or not there, and files of whole lines.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::OutputError;

/// Writes a file beside `path` and puts it in its place.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    let failed = |error| OutputError::at(path, &error);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
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

/// A file of lines, each written whole by one call, so that a process that is killed leaves whole lines.
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
        let length = file.metadata()?.len();
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
        fs::rename(&self.path, former)?;
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
