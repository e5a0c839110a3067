use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::probe::ptx::Kernels;

/// Where the probes look: the files below a root folder, and a set of variables. Nothing here fails other than by a result, whatever
/// the files hold.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) root: PathBuf,
    pub(super) variables: BTreeMap<String, String>,
    pub(super) kernels: Vec<Kernels>,
}

/// The most that is read of a file, in bytes; what `/proc` and `/sys` hold is far below it.
const MOST: u64 = 1 << 20;
/// The most of a log.
const MOST_OF_LOG: u64 = 4 << 20;
/// The most entries of a folder.
const MOST_ENTRIES: usize = 20_000;

impl Source {
    /// This machine's files, and this process's variables.
    pub(super) fn of_this_process() -> Self {
        Self {
            root: PathBuf::from("/"),
            variables: strings(std::env::vars_os()),
            kernels: Vec::new(),
        }
    }

    /// Whether the machine's own libraries are meant, which the loader finds by name.
    pub(super) fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A path of the machine's, as it lies below the root.
    pub(super) fn below(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A variable that is set to something other than nothing and 0.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.variable(name)
            .is_some_and(|value| !matches!(value.trim(), "" | "0"))
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.below(path).exists()
    }

    /// A short file's text without the white space around it; `None` where it cannot be read.
    pub(super) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The beginning of a file; what is no UTF-8 is replaced.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut bytes = Vec::new();
        open(&self.below(path))?
            .take(MOST)
            .read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of a log. The kernel's own gives one record at a time, and then says that it would have to wait.
    pub(super) fn log(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut file = open(&self.below(path))?;
        let length = file.metadata()?.len();
        if length > MOST_OF_LOG {
            file.seek(SeekFrom::End(-(MOST_OF_LOG as i64)))?;
        }
        let (mut log, mut record) = (Vec::new(), [0; 16 << 10]);
        while (log.len() as u64) < MOST_OF_LOG {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(read) => log.extend_from_slice(&record[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The kernel's log: a record was overwritten while it was read; the next read goes on behind it.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if !log.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// The names in a folder, in order; none where it cannot be read.
    pub(super) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.below(folder)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .take(MOST_ENTRIES)
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        names
    }

    /// The last part of what a link points to.
    pub(super) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.below(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Where a path ends up when all links are followed, as the machine names it; the path itself where they lead nowhere.
    pub(super) fn resolved(&self, path: impl AsRef<Path>) -> PathBuf {
        let root = self
            .root
            .canonicalize()
            .unwrap_or_else(|_| self.root.clone());
        match self.below(&path).canonicalize() {
            Ok(full) => Path::new("/").join(full.strip_prefix(&root).unwrap_or(&full)),
            Err(_) => path.as_ref().to_owned(),
        }
    }

    /// Whether a device node can be opened for reading and writing, which is what CUDA does.
    pub(super) fn opens(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        without_waiting(&mut options)
            .open(self.below(path))
            .map(drop)
    }
}

/// Variables as text; what is no UTF-8 is replaced.
pub(super) fn strings(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, String> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let variables = variables.into_iter();
    variables
        .map(|(name, value)| (text(name), text(value)))
        .collect()
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options).open(path)
}

/// A pipe without a writer, or the kernel's log at its end, would wait for ever.
#[cfg(target_os = "linux")]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    /// The same number on every architecture that CUDA exists for.
    const O_NONBLOCK: i32 = 0o4000;
    options.custom_flags(O_NONBLOCK)
}

#[cfg(not(target_os = "linux"))]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
