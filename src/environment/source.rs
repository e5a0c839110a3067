use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use super::probe::ptx::Kernels;
use crate::files;

/// Where the probes look: the files below a root folder, a set of variables, and kernels. Errors are results, whatever the files hold.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) root: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) kernels: Vec<Kernels>,
}

/// The bytes of a log that are kept, from its end.
const KEPT_OF_LOG: usize = 4 << 20;
/// The bytes of a log that are read to find its end: the kernel's log gives its oldest records first.
const MOST_OF_LOG: usize = 64 << 20;
/// The links in a path that are followed, as many as Linux follows.
const MOST_LINKS: usize = 40;
/// The entries of a folder that are read.
const MOST_ENTRIES: usize = 20_000;

impl Source {
    /// This machine's files and this process's variables; what is not UTF-8 is replaced.
    pub(crate) fn of_this_process() -> Self {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os();
        Self {
            root: PathBuf::from("/"),
            variables: variables
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            kernels: Vec::new(),
        }
    }

    /// Whether the source is the machine itself, whose libraries the loader finds by name.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A path of the machine below the root. Links are followed as the machine would follow them: absolute ones, and those with too many
    /// `..`, stay below the root.
    pub(crate) fn below(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        if self.is_this_machine() {
            return Ok(Path::new("/").join(path));
        }
        let mut links = 0;
        let mut inside = PathBuf::new();
        let mut ahead = reversed_parts(path);
        while let Some(part) = ahead.pop() {
            match Path::new(&part).components().next() {
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
            if let Ok(target) = fs::read_link(self.root.join(&inside)) {
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::other("too many links"));
                }
                inside.pop();
                ahead.extend(reversed_parts(&target));
            }
        }
        Ok(self.root.join(inside))
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Whether a variable is set to something other than nothing and 0.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.variable(name)
            .is_some_and(|value| !matches!(value.trim(), "" | "0"))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.below(path).is_ok_and(|path| path.exists())
    }

    /// The trimmed text of a short file; `None` if it is empty or cannot be read.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The beginning of a file; what is not UTF-8 is replaced.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        files::text(&self.below(path)?)
    }

    /// Whether a file is a library for processors of another word size, which the loader skips.
    pub(crate) fn is_of_other_class(&self, path: impl AsRef<Path>) -> bool {
        const CLASS: u8 = if cfg!(target_pointer_width = "64") {
            2
        } else {
            1
        };
        let mut head = [0; 5];
        let file = self.below(path).and_then(|path| files::open(&path));
        let read = file.and_then(|mut file| file.read_exact(&mut head));
        read.is_ok() && head.starts_with(b"\x7fELF") && head[4] != CLASS
    }

    /// The end of a log.
    pub(crate) fn log(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut file = files::open(&self.below(path)?)?;
        if file.metadata()?.len() > KEPT_OF_LOG as u64 {
            file.seek(SeekFrom::End(-(KEPT_OF_LOG as i64)))?;
        }
        end_of(file)
    }

    /// The sorted names in a folder; empty if it cannot be read.
    pub(crate) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = self.below(folder).and_then(fs::read_dir);
        let entries = entries.into_iter().flatten().take(MOST_ENTRIES);
        let mut names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        names
    }

    /// The last part of a link's target.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let folder = self.below(path.parent()?).ok()?;
        let target = fs::read_link(folder.join(path.file_name()?)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The path with all links followed, as the machine names it; the path itself if they lead nowhere.
    pub(crate) fn resolved(&self, path: impl AsRef<Path>) -> PathBuf {
        let root = self.root.canonicalize();
        match self.below(&path).and_then(|path| path.canonicalize()) {
            Ok(full) => {
                let inside = full.strip_prefix(root.as_ref().unwrap_or(&self.root));
                Path::new("/").join(inside.unwrap_or(&full))
            }
            Err(_) => path.as_ref().to_owned(),
        }
    }

    /// Whether a device node can be opened for reading and writing, as CUDA opens it.
    pub(crate) fn opens(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let options = files::without_waiting(&mut options);
        options.open(self.below(path)?).map(drop)
    }
}

/// The parts of a path, the last one first; an absolute path's root is one of them.
fn reversed_parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// The end of what is left to read.
fn end_of(mut log: impl Read) -> io::Result<String> {
    let (mut kept, mut record, mut total) = (Vec::new(), [0; 16 << 10], 0);
    while total < MOST_OF_LOG {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(read) => {
                total += read;
                kept.extend_from_slice(&record[..read]);
                // Seldom, since it moves all bytes.
                if kept.len() > 2 * KEPT_OF_LOG {
                    kept.drain(..kept.len() - KEPT_OF_LOG);
                }
            }
            // The kernel's log has no further record.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The kernel's log: a record was overwritten while it was read; the next read continues behind it.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) if !kept.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    kept.drain(..kept.len().saturating_sub(KEPT_OF_LOG));
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_kept() {
        let old = io::repeat(b'x').take(20 << 20);
        let log = end_of(old.chain(&b"the newest"[..])).unwrap();
        assert!(log.ends_with("the newest"));
        assert_eq!(log.len(), KEPT_OF_LOG);
        assert_eq!(end_of(io::repeat(b'x')).unwrap().len(), KEPT_OF_LOG);
    }
}
