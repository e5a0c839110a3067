use std::path::{Path, PathBuf};

use super::files::{NewFile, rename, sync_folder};
use super::folder::newest;
use super::manifest::{Fingerprint, MANIFEST, Manifest};
use super::name::Name;
use super::partial::Partial;
use super::snapshot::{SavedFile, Snapshot};
use super::verify::{read_manifest, verified};
use crate::error::Result;

/// Files that are open at the same time.
const TOGETHER: usize = 16;

/// Writes a checkpoint into the run's folder and returns its path. It appears under its name when it is complete and on the disk;
/// until then everything else in the folder stays as it is. Where the same checkpoint is there already, nothing is written.
pub(super) fn write(snapshot: &Snapshot, folder: &Path) -> Result<PathBuf> {
    if let Some(saved) = newest(folder, snapshot.step)? {
        let path = folder.join(saved.to_string());
        if is_saved(snapshot, &path)? {
            // Its name may not be on the disk yet, if that failed before.
            sync_folder(folder)?;
            return Ok(path);
        }
    }
    match &snapshot.partial {
        Some(partial) => complete(partial, snapshot, folder),
        None => complete(&Partial::of_step(folder, snapshot.step)?, snapshot, folder),
    }
}

/// Whether this checkpoint is intact and has the same files.
fn is_saved(snapshot: &Snapshot, path: &Path) -> Result<bool> {
    let Ok(saved) = read_manifest(path) else {
        return Ok(false);
    };
    let files = snapshot.files.len() + snapshot.others.len();
    let mut others = snapshot.others.iter();
    if saved.files.len() != files || !others.all(|(name, it)| saved.files.get(name) == Some(it)) {
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
    let partial = Partial::create(folder, free.next().unwrap_or_default())?;
    complete(&partial, snapshot, folder)
}

/// Writes what is missing in the folder, and gives it its name.
fn complete(partial: &Partial, snapshot: &Snapshot, folder: &Path) -> Result<PathBuf> {
    fill(snapshot, &partial.path)?;
    let path = folder.join(&partial.name);
    rename(&partial.path, &path)?;
    sync_folder(folder)?;
    Ok(path)
}

fn fill(snapshot: &Snapshot, partial: &Path) -> Result<()> {
    let write = |file: &SavedFile| {
        let mut new = NewFile::create(partial.join(&file.name))?;
        file.write(&mut new, &snapshot.buffer)?;
        new.end()?;
        Ok(new)
    };
    let mut files = snapshot.others.clone();
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
