use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use super::probe::ptx::Kernels;
use crate::files;

/// Where the probes look: the files below a root folder, and a set of variables. Nothing here fails other than by a result, whatever
/// the files hold.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) root: PathBuf,
    pub(super) variables: BTreeMap<String, String>,
    pub(super) kernels: Vec<Kernels>,
}

/// The most that is kept of a log, from its end, in bytes.
const MOST_OF_LOG: usize = 4 << 20;
/// The most that is read of a log to come to its end: the kernel's own gives its records from the oldest on.
const LONGEST_LOG: usize = 64 << 20;
/// So many links in a path are followed, as many as Linux follows.
const MOST_LINKS: usize = 40;
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

    /// Where a path of the machine's lies below the root. Links are followed as the machine would follow them: an absolute one stays
    /// below the root, and so does one with too many `..`.
    pub(super) fn below(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        if self.is_this_machine() {
            return Ok(Path::new("/").join(path));
        }
        let mut links = 0;
        let mut inside = PathBuf::new();
        let mut ahead: Vec<_> = steps(path);
        while let Some(step) = ahead.pop() {
            match Path::new(&step).components().next() {
                Some(Component::Normal(name)) => inside.push(name),
                Some(Component::ParentDir) => {
                    inside.pop();
                    continue;
                }
                Some(Component::RootDir) => {
                    inside.clear();
                    continue;
                }
                _ => continue,
            }
            let Ok(target) = fs::read_link(self.root.join(&inside)) else {
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::other("too many links"));
            }
            inside.pop();
            ahead.extend(steps(&target));
        }
        Ok(self.root.join(inside))
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
        self.below(path).is_ok_and(|path| path.exists())
    }

    /// A short file's text without the white space around it; `None` where it cannot be read.
    pub(super) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The beginning of a file; what is no UTF-8 is replaced.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        files::text(&self.below(path)?)
    }

    /// Whether a file says that it is a program or library for processors of another word size, which the loader passes over.
    pub(super) fn is_of_other_class(&self, path: impl AsRef<Path>) -> bool {
        const CLASS: u8 = match cfg!(target_pointer_width = "64") {
            true => 2,
            false => 1,
        };
        let mut head = [0; 5];
        let read = self
            .below(path)
            .and_then(|path| files::open(&path)?.read_exact(&mut head));
        read.is_ok() && head.starts_with(b"\x7fELF") && head[4] != CLASS
    }

    /// The end of a log. The kernel's own gives one record at a time, and then says that it would have to wait.
    pub(super) fn log(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut file = files::open(&self.below(path)?)?;
        let length = file.metadata()?.len();
        if length > MOST_OF_LOG as u64 {
            file.seek(SeekFrom::End(-(MOST_OF_LOG as i64)))?;
        }
        end_of(file)
    }

    /// The names in a folder, in order; none where it cannot be read.
    pub(super) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = self.below(folder).and_then(fs::read_dir);
        let mut names: Vec<_> = entries
            .into_iter()
            .flatten()
            .take(MOST_ENTRIES)
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        names
    }

    /// The last part of what a link points to.
    pub(super) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let folder = self.below(path.parent()?).ok()?;
        let target = fs::read_link(folder.join(path.file_name()?)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Where a path ends up when all links are followed, as the machine names it; the path itself where they lead nowhere.
    pub(super) fn resolved(&self, path: impl AsRef<Path>) -> PathBuf {
        let root = self
            .root
            .canonicalize()
            .unwrap_or_else(|_| self.root.clone());
        match self.below(&path).and_then(|path| path.canonicalize()) {
            Ok(full) => Path::new("/").join(full.strip_prefix(&root).unwrap_or(&full)),
            Err(_) => path.as_ref().to_owned(),
        }
    }

    /// Whether a device node can be opened for reading and writing, which is what CUDA does.
    pub(super) fn opens(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        files::without_waiting(&mut options)
            .open(self.below(path)?)
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

/// The parts of a path, the first one last; an absolute path's root is one of them.
fn steps(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// The last part of what is left to read.
fn end_of(mut log: impl Read) -> io::Result<String> {
    let (mut kept, mut record, mut total) = (Vec::new(), [0; 16 << 10], 0);
    while total < LONGEST_LOG {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(read) => {
                total += read;
                kept.extend_from_slice(&record[..read]);
                // Not at every record, which would move all bytes for each.
                if kept.len() > 2 * MOST_OF_LOG {
                    kept.drain(..kept.len() - MOST_OF_LOG);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The kernel's log: a record was overwritten while it was read; the next read goes on behind it.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) if !kept.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    kept.drain(..kept.len().saturating_sub(MOST_OF_LOG));
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_kept_not_its_beginning() {
        let old = io::repeat(b'x').take(20 << 20);
        let log = end_of(old.chain(&b"the newest"[..])).unwrap();
        assert!(log.ends_with("the newest"));
        assert_eq!(log.len(), MOST_OF_LOG);
        let endless = end_of(io::repeat(b'x')).unwrap();
        assert_eq!(endless.len(), MOST_OF_LOG);
    }
}
