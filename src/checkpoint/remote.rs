//! Checkpoints in an object store: copies of those in the run's folder. The manifest is written last and removed first.

use std::cmp::Reverse;
use std::path::Path;

use super::document::{Fingerprint, MANIFEST, Manifest, open, unread};
use super::files::{NewFile, rename, sync_folder};
use super::folder::{Keep, Name, Partial, checkpoints, file_name};
use crate::error::{CheckpointError, Result, Skipped};
use crate::remote::RemoteFolder;

/// What is read at once.
const PIECE: u64 = 4 << 20;

/// Where a run's checkpoints are copied to.
#[derive(Debug, Clone)]
pub(super) struct Upload(RemoteFolder);

impl Upload {
    pub(super) fn new(url: &str) -> Result<Self> {
        let folder = RemoteFolder::open(url);
        Ok(Self(folder.map_err(CheckpointError::file(
            "upload to",
            Path::new(url),
        ))?))
    }

    /// Copies the checkpoint at `path`, and removes older copies.
    pub(super) fn copy(&self, path: &Path, keep: &Keep) -> Result<()> {
        let (name, remote) = (file_name(path), &self.0);
        let at = |file: &str| format!("{name}/{file}");
        let failed = |file: &str| {
            let path = remote.path(&at(file));
            move |error| CheckpointError::file("upload", &path)(error)
        };
        let manifest = Manifest::read(path)?;
        if Manifest::read(&remote.path(&name)).is_ok_and(|copy| copy == manifest) {
            return Ok(());
        }
        // Of another run's. Without it the files below are no checkpoint.
        remote.remove(&at(MANIFEST)).map_err(failed(MANIFEST))?;
        for file in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
            let put = remote.put(&at(file), &path.join(file));
            put.map_err(failed(file))?;
        }
        if let Err(error) = self.rotate(path, manifest.step, keep) {
            tracing::warn!(%error, "an older copy of a checkpoint stays");
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<Name>> {
        let listed = self.0.list("");
        let listed = listed.map_err(CheckpointError::file("list", &self.0.path("")))?;
        let names = listed.0.iter().filter_map(|name| Name::parse(name));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable_by_key(|name| Reverse(*name));
        Ok(names)
    }

    /// Keeps the newest, and those that the run's folder still has.
    fn rotate(&self, path: &Path, written: u64, keep: &Keep) -> Result<()> {
        let older = self
            .names()?
            .into_iter()
            .filter(|name| name.step <= written);
        for name in older.skip(keep.last).map(|name| name.to_string()) {
            if path.with_file_name(&name).exists() {
                continue;
            }
            let (_, files) = self
                .0
                .list(&name)
                .map_err(CheckpointError::file("list", path))?;
            let first = files.iter().filter(|file| *file == MANIFEST);
            let others = files.iter().filter(|file| *file != MANIFEST);
            for file in first.chain(others) {
                let file = format!("{name}/{file}");
                let removed = self.0.remove(&file);
                removed.map_err(CheckpointError::file("remove", &self.0.path(&file)))?;
            }
        }
        Ok(())
    }

    /// Copies the newest checkpoint that is complete and intact into the run's folder, if it is newer than what the folder has.
    pub(super) fn fetch(&self, folder: &Path) -> Result<()> {
        let own = checkpoints(folder)?.first().map(|name| name.step);
        let mut skipped = Vec::new();
        for name in self.names()? {
            if own.is_some_and(|own| own >= name.step) {
                return Ok(());
            }
            let at = self.0.path(&name.to_string());
            let (_, files) = self
                .0
                .list(&name.to_string())
                .map_err(CheckpointError::file("list", &at))?;
            if !files.iter().any(|file| file == MANIFEST) {
                continue;
            }
            let partial = Partial::of_step(folder, name.step)?;
            match fetch(&at, &partial.path) {
                Ok(()) => {
                    rename(&partial.path, &folder.join(&partial.name))?;
                    return Ok(sync_folder(folder)?);
                }
                Err(CheckpointError::Damaged { problem, .. }) => {
                    tracing::warn!(path = %at.display(), problem, "a copy of a checkpoint is damaged");
                    skipped.push(Skipped::new(&at, problem));
                }
                Err(error) => return Err(error.into()),
            }
        }
        match own.is_none() && !skipped.is_empty() {
            true => Err(CheckpointError::NoneIntact {
                folder: self.0.path(""),
                skipped,
            }
            .into()),
            false => Ok(()),
        }
    }
}

/// Copies the checkpoint at `at` into a local folder.
fn fetch(at: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let manifest = Manifest::read(at)?;
    for (name, expected) in &manifest.files {
        if copy(at, folder, name)? != *expected {
            let problem = format!("{name} is not what the manifest says");
            return Err(CheckpointError::damaged(at, problem));
        }
    }
    copy(at, folder, MANIFEST)?;
    sync_folder(folder)
}

fn copy(at: &Path, folder: &Path, name: &str) -> Result<Fingerprint, CheckpointError> {
    let source = open(&at.join(name)).map_err(unread(at, name))?;
    let mut file = NewFile::create(folder.join(name))?;
    for start in (0..source.len()).step_by(PIECE as usize) {
        let bytes = source.read(start..source.len().min(start + PIECE));
        file.write(&bytes.map_err(CheckpointError::file("read", source.path()))?)?;
    }
    file.end()?;
    Ok(Fingerprint::new(file.finish()?))
}
