use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::files::{remove_folder, rename, sync_folder};
use super::name::Name;
use crate::error::{CheckpointError, Result};

const LOCK: &str = ".lock";

/// A run's folder.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// The writer's; locked until it is closed, which the system does for a killed process.
    _lock: Option<File>,
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
        let lock_path = path.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(CheckpointError::file("open", &lock_path))?;
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
        let folder = Self {
            path: path.to_owned(),
            _lock: Some(lock),
        };
        folder.remove_partial(is_alone)?;
        Ok(folder)
    }

    /// The folder of another rank's run, for reading.
    pub(super) fn of_other(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            _lock: None,
        }
    }

    /// Without a lock another writer may live, so only what this process left is removed.
    fn remove_partial(&self, is_alone: bool) -> Result<()> {
        for text in entries(&self.path)? {
            let writer = Name::writer(&text);
            if writer.is_some_and(|writer| is_alone || writer == std::process::id()) {
                let partial = self.path.join(text);
                if let Err(error) = remove_folder(&partial) {
                    tracing::warn!(%error, "an incomplete checkpoint stays");
                }
            }
        }
        Ok(())
    }
}

/// The checkpoints of a folder, newest first; none if there is no folder.
pub(super) fn checkpoints(folder: &Path) -> Result<Vec<Name>> {
    let mut names: Vec<_> = entries(folder)?
        .iter()
        .filter_map(|text| Name::parse(text))
        .collect();
    names.sort_unstable();
    names.reverse();
    Ok(names)
}

/// Removes a checkpoint. A process that is killed meanwhile leaves a partial folder, not a damaged checkpoint.
pub(super) fn remove(folder: &Path, name: Name) -> Result<(), CheckpointError> {
    let name = name.to_string();
    let partial = folder.join(Name::partial(&name));
    rename(&folder.join(name), &partial)?;
    remove_folder(&partial)
}

fn entries(folder: &Path) -> Result<Vec<String>> {
    let read = || -> std::io::Result<Vec<_>> {
        let mut names = Vec::new();
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
            entries => entries?,
        };
        for entry in entries {
            // Names that are not UTF-8 are not ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    };
    Ok(read().map_err(CheckpointError::file("read", folder))?)
}
