//! Checkpoints in an object store: copies of those in the run's folder. The manifest is written last and removed first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::checkpoint::Checkpoint;
use super::document::{Fingerprint, MANIFEST, Manifest, unread};
use super::files::{NewFile, rename, sync_folder};
use super::folder::{Keep, Name, Partial, file_name};
use crate::error::{CheckpointError, Error, Result, Skipped};
use crate::fixed_file::FixedFile;
use crate::remote::RemoteFolder;

/// What is read at once.
const PIECE: u64 = 4 << 20;

/// Where a run's checkpoints are copied to.
#[derive(Debug, Clone)]
pub(super) struct Upload {
    remote: RemoteFolder,
    /// Copies that were found damaged, and not written since.
    damaged: Arc<Mutex<BTreeSet<String>>>,
}

impl Upload {
    pub(super) fn new(url: &str) -> Result<Self> {
        let remote = RemoteFolder::open(url);
        Ok(Self {
            remote: remote.map_err(CheckpointError::file("upload to", Path::new(url)))?,
            damaged: Arc::default(),
        })
    }

    /// Copies the checkpoint at `path`, and removes older copies.
    pub(super) fn copy(&self, path: &Path, keep: &Keep) -> Result<()> {
        let (name, remote) = (file_name(path), &self.remote);
        let at = |file: &str| format!("{name}/{file}");
        let failed = |file: &str| {
            let path = remote.path(&at(file));
            move |error| CheckpointError::file("upload", &path)(error)
        };
        let manifest = Manifest::read(path)?;
        if self.is_copied(&name, &manifest)? {
            return Ok(());
        }
        // Of another run's, or of a damaged copy. Without it the files below are no checkpoint.
        remote.remove(&at(MANIFEST)).map_err(failed(MANIFEST))?;
        for file in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
            let put = remote.put(&at(file), &path.join(file));
            put.map_err(failed(file))?;
        }
        self.damaged.lock().remove(&name);
        if let Err(error) = self.rotate(path, manifest.step, keep) {
            tracing::warn!(%error, "an older copy of a checkpoint stays");
        }
        Ok(())
    }

    /// Whether there is a copy that is not known to be damaged, with files of the right lengths.
    fn is_copied(&self, name: &str, manifest: &Manifest) -> Result<bool> {
        let files = self.files(name)?;
        let is_there = |(file, it): (_, &Fingerprint)| files.get(file) == Some(&it.bytes);
        Ok(self.is_whole(name, &files)
            && manifest.files.iter().all(is_there)
            && self.manifest(name).is_ok_and(|copy| copy == *manifest))
    }

    fn is_whole(&self, name: &str, files: &BTreeMap<String, u64>) -> bool {
        files.contains_key(MANIFEST) && !self.damaged.lock().contains(name)
    }

    fn names(&self) -> Result<Vec<Name>> {
        let listed = self.remote.list("");
        let listed = listed.map_err(CheckpointError::file("list", &self.remote.path("")))?;
        let names = listed.0.iter().filter_map(|name| Name::parse(name));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable_by_key(|name| Reverse(*name));
        Ok(names)
    }

    /// The files of a copy, and their lengths.
    fn files(&self, name: &str) -> Result<BTreeMap<String, u64>> {
        let listed = self.remote.list(name);
        Ok(listed
            .map_err(CheckpointError::file("list", &self.remote.path(name)))?
            .1)
    }

    /// Keeps the newest that are whole, and those that the run's folder still has.
    fn rotate(&self, path: &Path, written: u64, keep: &Keep) -> Result<()> {
        let mut kept = 0;
        for name in self
            .names()?
            .into_iter()
            .filter(|name| name.step <= written)
        {
            let name = name.to_string();
            let files = self.files(&name)?;
            if self.is_whole(&name, &files) {
                kept += 1;
                if kept <= keep.last || path.with_file_name(&name).exists() {
                    continue;
                }
            }
            let others = files.keys().map(String::as_str);
            for file in [MANIFEST].into_iter().chain(others) {
                let file = format!("{name}/{file}");
                let removed = self.remote.remove(&file);
                removed.map_err(CheckpointError::file("remove", &self.remote.path(&file)))?;
            }
        }
        Ok(())
    }

    /// Copies the newest checkpoint that is complete and intact into the run's folder, if it is newer than the intact ones of the folder.
    pub(super) fn fetch(&self, folder: &Path) -> Result<()> {
        let own = match Checkpoint::latest(folder) {
            Ok(own) => own.map(|own| own.step()),
            Err(Error::Checkpoint(error))
                if matches!(*error, CheckpointError::NoneIntact { .. }) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        let mut skipped = Vec::new();
        for name in self.names()? {
            if own.is_some_and(|own| own >= name.step) {
                return Ok(());
            }
            let text = name.to_string();
            if !self.files(&text)?.contains_key(MANIFEST) {
                continue;
            }
            let partial = Partial::of_step(folder, name.step)?;
            match self.fetch_one(&text, &partial.path) {
                Ok(()) => {
                    rename(&partial.path, &folder.join(&partial.name))?;
                    return Ok(sync_folder(folder)?);
                }
                Err(CheckpointError::Damaged { path, problem }) => {
                    tracing::warn!(path = %path.display(), problem, "a copy of a checkpoint is damaged");
                    skipped.push(Skipped::new(&path, problem));
                    self.damaged.lock().insert(text);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match own.is_none() && !skipped.is_empty() {
            true => Err(CheckpointError::NoneIntact {
                folder: self.remote.path(""),
                skipped,
            }
            .into()),
            false => Ok(()),
        }
    }

    /// Copies one into a local folder.
    fn fetch_one(&self, name: &str, folder: &Path) -> Result<(), CheckpointError> {
        let manifest = self.manifest(name)?;
        for (file, expected) in &manifest.files {
            if self.fetch_file(name, file, folder)? != *expected {
                let problem = format!("{file} is not what the manifest says");
                return Err(CheckpointError::damaged(&self.remote.path(name), problem));
            }
        }
        self.fetch_file(name, MANIFEST, folder)?;
        sync_folder(folder)
    }

    fn fetch_file(
        &self,
        name: &str,
        file: &str,
        folder: &Path,
    ) -> Result<Fingerprint, CheckpointError> {
        let source = self
            .open(name, file)
            .map_err(unread(&self.remote.path(name), file))?;
        let mut file = NewFile::create(folder.join(file))?;
        for start in (0..source.len()).step_by(PIECE as usize) {
            let bytes = source.read(start..source.len().min(start + PIECE));
            file.write(&bytes.map_err(CheckpointError::file("read", source.path()))?)?;
        }
        file.end()?;
        Ok(Fingerprint::new(file.finish()?))
    }

    fn manifest(&self, name: &str) -> Result<Manifest, CheckpointError> {
        Manifest::of(&self.remote.path(name), self.open(name, MANIFEST))
    }

    fn open(&self, name: &str, file: &str) -> Result<FixedFile, CheckpointError> {
        let name = format!("{name}/{file}");
        let opened = self.remote.get(&name);
        opened.map_err(CheckpointError::file("read", &self.remote.path(&name)))
    }
}
