use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files::{NewFile, create_folder, remove_folder, rename, sync_folder};
use super::folder::checkpoints;
use super::manifest::{Fingerprint, MANIFEST, Manifest};
use super::name::Name;
use super::snapshot::{SavedFile, Snapshot};
use super::verify::{read_manifest, verified};
use crate::error::Result;

/// Files that are open at the same time.
const TOGETHER: usize = 16;

/// Writes a checkpoint into the run's folder and returns its path. It appears under its name when it is complete and on the disk;
/// until then everything else in the folder stays as it is. Where the same checkpoint is there already, nothing is written.
pub(super) fn write(snapshot: &Snapshot, folder: &Path) -> Result<PathBuf> {
    let step = snapshot.step;
    let mut others = checkpoints(folder)?.into_iter();
    let mut copy = 1;
    if let Some(other) = others.find(|other| other.step == step) {
        let path = folder.join(other.to_string());
        if is_saved(snapshot, &path)? {
            // Its name may not be on the disk yet, if that failed before.
            sync_folder(folder)?;
            return Ok(path);
        }
        copy = other.copy.saturating_add(1);
    }
    write_as(snapshot, folder, &Name { step, copy }.to_string())
}

/// Whether this checkpoint is intact and has the same files.
fn is_saved(snapshot: &Snapshot, path: &Path) -> Result<bool> {
    let Ok(saved) = read_manifest(path) else {
        return Ok(false);
    };
    if saved.files.len() != snapshot.files.len() {
        return Ok(false);
    }
    // The last file is small, and most likely to differ.
    for file in snapshot.files.iter().rev() {
        let new = file.fingerprint(&snapshot.buffer)?;
        if saved.files.get(&file.name) != Some(&new) {
            return Ok(false);
        }
    }
    Ok(verified(path).is_ok())
}

/// Writes what is left of a run.
pub(super) fn write_rescue(snapshot: &Snapshot, folder: &Path) -> Result<PathBuf> {
    let name = Name {
        step: snapshot.step,
        copy: 1,
    };
    let names = (1..).map(|copy| match copy {
        1 => format!("{name}.rescue"),
        copy => format!("{name}.rescue-{copy}"),
    });
    let mut free = names.filter(|name| !folder.join(name).exists());
    write_as(snapshot, folder, &free.next().unwrap_or_default())
}

fn write_as(snapshot: &Snapshot, folder: &Path, name: &str) -> Result<PathBuf> {
    let partial = folder.join(Name::partial(name));
    if partial.symlink_metadata().is_ok() {
        remove_folder(&partial)?;
    }
    let path = folder.join(name);
    let written = fill(snapshot, &partial).and_then(|()| {
        rename(&partial, &path)?;
        Ok(sync_folder(folder)?)
    });
    if written.is_err() && partial.exists() {
        // A full disk needs the space. What stays is removed by the next attempt.
        let _ = remove_folder(&partial);
    }
    written.map(|()| path)
}

fn fill(snapshot: &Snapshot, partial: &Path) -> Result<()> {
    create_folder(partial)?;
    let write = |file: &SavedFile| {
        let mut new = NewFile::create(partial.join(&file.name))?;
        file.write(&mut new, &snapshot.buffer)?;
        new.end()?;
        Ok(new)
    };
    let mut files = BTreeMap::new();
    for group in snapshot.files.chunks(TOGETHER) {
        // All are written before the first is waited for, so that the disk is never idle.
        let new: Vec<_> = group.iter().map(write).collect::<Result<_>>()?;
        for (file, new) in group.iter().zip(new) {
            files.insert(file.name.clone(), Fingerprint::new(new.finish()?));
        }
    }
    let manifest = Manifest::new(snapshot.step, files).into_bytes();
    let manifest = manifest.map_err(candle_core::Error::wrap)?;
    write(&SavedFile::of_bytes(MANIFEST, manifest))?.finish()?;
    Ok(sync_folder(partial)?)
}
