//! A run's folder: who may write there, which checkpoints it holds, and which of them are kept.
//!
//! The writer holds the lock on `.lock`, which the system frees for a killed process, and leaves a word in it, by which it notices a writer on a host
//! with locks of its own. The name of an incomplete checkpoint says which process of which running system writes it: what a killed writer left is
//! removed when the next one of the same system opens the folder, or after an hour without a change.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use super::document::{Document, STATE, open};
use super::files::{create_folder, remove_folder, rename, sync_folder};
use crate::error::{CheckpointError, Result};
use crate::{files, host};

const LOCK: &str = ".lock";
/// A partial checkpoint of another host to which nothing was written for so long has no writer any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A run's folder.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// The writer's; locked until it is closed, which the system does for a killed process.
    _lock: Option<File>,
    /// What the writer has written into the lock.
    owner: String,
}

impl Folder {
    /// Creates the folder if it is missing, locks it, and removes what killed writers left.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let is_new = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let new: Vec<_> = path.ancestors().take_while(is_new).collect();
        fs::create_dir_all(path).map_err(CheckpointError::file("create", path))?;
        for folder in new {
            let parent = folder.parent().filter(|it| !it.as_os_str().is_empty());
            sync_folder(parent.unwrap_or(Path::new(".")))?;
        }
        let mut lock = open_lock(&path.join(LOCK))?;
        let is_alone = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                return Err(CheckpointError::InUse(path.to_owned()).into());
            }
            Err(TryLockError::Error(error)) => {
                let folder = path.display();
                tracing::warn!(%folder, %error, "the file system has no locks: nothing keeps a second run out of this folder");
                false
            }
        };
        let owner = format!("{}-{:x}", *WRITER, RandomState::new().hash_one(()));
        let named = lock.set_len(0);
        if let Err(error) = named.and_then(|()| files::write_all(&mut lock, owner.as_bytes())) {
            tracing::warn!(%error, "the lock has no owner: a run on a host with other locks would not be noticed");
        }
        let folder = Self {
            path: path.to_owned(),
            _lock: Some(lock),
            owner,
        };
        folder.remove_partial(is_alone)?;
        Ok(folder)
    }

    /// The folder of another rank's run, for reading.
    pub(super) fn of_other(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            _lock: None,
            owner: String::new(),
        }
    }

    /// Checks that no other run has opened the folder since, on a host that does not see this one's lock.
    pub(super) fn check_owner(&self) -> Result<(), CheckpointError> {
        let mut owner = String::new();
        // A lock that cannot be read says nothing.
        let _ = files::open(&self.path.join(LOCK))
            .and_then(|lock| lock.take(256).read_to_string(&mut owner));
        match owner.is_empty() || owner == self.owner {
            true => Ok(()),
            false => Err(CheckpointError::InUse(self.path.clone())),
        }
    }

    /// Without a lock another writer may live, and one of another host may have locks of its own.
    fn remove_partial(&self, is_alone: bool) -> Result<()> {
        for text in entries(&self.path)? {
            let Some(writer) = Name::writer(&text) else {
                continue;
            };
            let is_here = writer.get(..8) == WRITER.get(..8);
            let is_over = writer == *WRITER || is_alone && is_here;
            let partial = self.path.join(&text);
            if (is_over || is_abandoned(&partial))
                && let Err(error) = remove_folder(&partial)
            {
                tracing::warn!(%error, "an incomplete checkpoint stays");
            }
        }
        Ok(())
    }
}

/// Opens the lock, whose content is replaced, so it must be a file of this folder: a link may lead to a file of somebody else's.
fn open_lock(path: &Path) -> Result<File, CheckpointError> {
    let is_link = || fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let foreign = || {
        let problem = "a link or no regular file is there: remove it, or use another folder";
        CheckpointError::file("lock", path)(io::Error::other(problem))
    };
    // Opening refuses a link too, where the system can.
    if is_link() {
        return Err(foreign());
    }
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    let lock = match files::without_links(&mut options).open(path) {
        Err(_) if is_link() => return Err(foreign()),
        lock => lock.map_err(CheckpointError::file("open", path))?,
    };
    let found = lock
        .metadata()
        .map_err(CheckpointError::file("read", path))?;
    match found.is_file() {
        true => Ok(lock),
        false => Err(foreign()),
    }
}

/// Whether nothing was written to a folder or to a file in it for a while.
fn is_abandoned(folder: &Path) -> bool {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = files.map(|file| file.path()).chain([folder.to_owned()]);
    paths.all(|path| {
        let written = fs::symlink_metadata(path).and_then(|it| it.modified());
        let since = written.ok().and_then(|time| time.elapsed().ok());
        since.is_some_and(|since| since > ABANDONED)
    })
}

/// The checkpoints of a folder, newest first; none if there is no folder.
pub(super) fn checkpoints(folder: &Path) -> Result<Vec<Name>> {
    let names = entries(folder)?;
    let mut names: Vec<_> = names.iter().filter_map(|text| Name::parse(text)).collect();
    names.sort_unstable_by_key(|name| Reverse(*name));
    Ok(names)
}

/// The newest checkpoint of a step.
pub(super) fn newest(folder: &Path, step: u64) -> Result<Option<Name>> {
    let mut others = checkpoints(folder)?.into_iter();
    Ok(others.find(|other| other.step == step))
}

/// Removes a checkpoint. A process that is killed meanwhile leaves a partial folder, not a damaged checkpoint.
pub(super) fn remove(folder: &Path, name: Name) -> Result<(), CheckpointError> {
    let name = name.to_string();
    let partial = folder.join(Name::partial(&name));
    rename(&folder.join(name), &partial)?;
    remove_folder(&partial)
}

fn entries(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
        entries => entries.map_err(CheckpointError::file("read", folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(CheckpointError::file("read", folder))?;
        // Names that are not UTF-8 are not ours.
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// The folder of a checkpoint that is not complete. Dropping it removes the folder, unless it has got its name.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) path: PathBuf,
    /// The complete one's.
    pub(super) name: String,
}

impl Partial {
    /// Creates the folder of a new checkpoint of this step.
    pub(super) fn of_step(folder: &Path, step: u64) -> Result<Self> {
        let copy = newest(folder, step)?.map_or(1, |other| other.copy.saturating_add(1));
        let name = Name { step, copy }.to_string();
        let path = folder.join(Name::partial(&name));
        if path.symlink_metadata().is_ok() {
            remove_folder(&path)?;
        }
        create_folder(&path)?;
        Ok(Self { path, name })
    }

    /// Whether it has a file of this name.
    pub(super) fn holds(&self, name: &str) -> bool {
        let file = self.path.join(name).symlink_metadata();
        file.is_ok_and(|file| file.is_file())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.path.exists() {
            // A full disk needs the space. What stays is removed by the next attempt.
            let _ = remove_folder(&self.path);
        }
    }
}

/// What stays in a folder.
#[derive(Debug, Clone, Default)]
pub(super) struct Keep {
    pub(super) last: usize,
    pub(super) best: Option<Best>,
    /// Found damaged when the run was resumed.
    pub(super) damaged: Vec<Name>,
}

impl Keep {
    /// Removes what need not stay, after the checkpoint of step `written` has reached the disk. That one always stays; so does a newer
    /// one, which can only be damaged.
    pub(super) fn rotate(&self, folder: &Path, written: u64) -> Result<()> {
        let mut all = checkpoints(folder)?;
        all.retain(|name| name.step <= written);
        let intact = self.intact(&all);
        let best = self.best_of(folder, &intact);
        let kept: Vec<Name> = intact.into_iter().take(self.last).chain(best).collect();
        for name in all {
            if !kept.contains(&name) {
                remove(folder, name)?;
            }
        }
        Ok(())
    }

    /// The best by its metric.
    pub(super) fn best(&self, folder: &Path) -> Result<Option<Name>> {
        Ok(self.best_of(folder, &self.intact(&checkpoints(folder)?)))
    }

    /// Those that may stay: of each step the newest, because it was saved again.
    fn intact(&self, all: &[Name]) -> Vec<Name> {
        let intact = all.iter().filter(|name| !self.damaged.contains(name));
        let mut intact: Vec<Name> = intact.copied().collect();
        intact.dedup_by_key(|name| name.step);
        intact
    }

    /// Of equals the oldest.
    fn best_of(&self, folder: &Path, intact: &[Name]) -> Option<Name> {
        let Best { metric, is_highest } = self.best.as_ref()?;
        let sign = if *is_highest { 1. } else { -1. };
        let value = |name: &Name| Some((*name, sign * saved_metric(folder, *name, metric)?));
        let values = intact.iter().rev().filter_map(value);
        let best = values.reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.map(|(name, _)| name)
    }
}

fn saved_metric(folder: &Path, name: Name, metric: &str) -> Option<f64> {
    let path = folder.join(name.to_string());
    let document = Document::read(&path, &open(&path.join(STATE)).ok()?).ok()?;
    document.metrics.get(metric).copied()
}

/// The metric whose best checkpoint is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Best {
    pub(super) metric: String,
    pub(super) is_highest: bool,
}

/// The name of a checkpoint's folder: `step-000000100`, and `step-000000100-2` for a second one of the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) step: u64,
    copy: u32,
}

/// The running system whose processes share locks, and this process of it: hosts that share a folder may have processes of the same
/// number, so it is a random one.
static WRITER: LazyLock<String> = LazyLock::new(|| {
    let boot = Some(host::boot()).filter(|id| !id.is_empty());
    let host = crc32fast::hash(boot.unwrap_or_else(host::name).as_bytes());
    let process = RandomState::new().hash_one(()) as u32;
    format!("{host:08x}-{process:08x}")
});

impl Name {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("step-")?;
        let (step, copy) = match rest.split_once('-') {
            Some((step, copy)) => (step, copy.parse().ok()?),
            None => (rest, 1),
        };
        let name = Self {
            step: step.parse().ok()?,
            copy,
        };
        // Other spellings of the numbers are not ours.
        (name.to_string() == text).then_some(name)
    }

    /// The name under which this process writes or removes a folder.
    fn partial(text: &str) -> String {
        format!("{text}.partial-{}", *WRITER)
    }

    /// The [writer](WRITER) of the folder of this name, if it is that of a checkpoint which is being written or removed.
    pub(super) fn writer(text: &str) -> Option<&str> {
        let (name, writer) = text.split_once(".partial-")?;
        let is_ours = |(at, byte): (usize, u8)| match at {
            8 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        };
        let is_ours = writer.len() == 17 && writer.bytes().enumerate().all(is_ours);
        (is_ours && Self::parse(name).is_some()).then_some(writer)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{:09}", self.step)?;
        match self.copy {
            1 => Ok(()),
            copy => write!(f, "-{copy}"),
        }
    }
}

/// The name of a checkpoint, whose path may be another on each rank.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Name, WRITER};

    #[test]
    fn names_are_read_as_they_are_written() {
        for (text, step, copy) in [
            ("step-000000100", 100, 1),
            ("step-000000100-2", 100, 2),
            ("step-18446744073709551615", u64::MAX, 1),
        ] {
            assert_eq!(Name::parse(text), Some(Name { step, copy }));
        }
        for other in [
            "step-100",
            "step-000000100-1",
            "step-000000100-02",
            "step-000000100.partial-7",
            "step-+00000100",
            "step-",
            "model",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
        for name in ["step-000000100", "step-12345678901-2"] {
            let partial = Name::partial(name);
            assert_eq!(Name::writer(&partial), Some(&**WRITER), "{partial}");
        }
        for other in [
            "notes.partial-0000000a-0000000b",
            "step-100.partial-0000000a-0000000b",
            "step-0000000100.partial-0000000a-0000000b",
            "step-000000100.other.partial-0000000a-0000000b",
            "step-000000100.partial-0000000a-0000000b\n",
            "step-000000100.partial-0000000A-0000000b",
            "step-000000100.partial-a-b",
            "step-000000100.partial-7",
            "step-000000100.partial-",
        ] {
            assert_eq!(Name::writer(other), None, "{other}");
        }
    }
}
