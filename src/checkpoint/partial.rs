use std::path::{Path, PathBuf};

use super::files::{create_folder, remove_folder};
use super::folder::newest;
use super::name::Name;
use crate::error::Result;

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
        Self::create(folder, Name { step, copy }.to_string())
    }

    pub(super) fn create(folder: &Path, name: String) -> Result<Self> {
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
