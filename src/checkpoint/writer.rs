//! Writes snapshots: into a partial folder, whose files and entries are flushed before it gets its name. At most one is written in the background,
//! and its buffer serves the next.

use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use super::checkpoint::Checkpoint;
use super::document::{Fingerprint, MANIFEST, Manifest};
use super::files::{NewFile, rename, sync_folder};
use super::folder::{Keep, Partial, newest};
use super::remote::Upload;
use super::snapshot::{SavedFile, Snapshot};
use crate::error::{Error, Result, invalid};

/// Writes snapshots, at most one at a time in the background.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// The step of the snapshot that is written.
    running: Option<(u64, Running)>,
    /// The last snapshot's, for the next one.
    buffer: Vec<u8>,
}

/// A thread that writes a snapshot. It returns the snapshot's buffer.
type Running = JoinHandle<(Vec<u8>, Result<PathBuf>)>;

/// Of which step a checkpoint was written, and how that ended.
type Ended = (u64, Result<PathBuf>);

impl Writer {
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Takes the buffer for the next snapshot, with room for so many bytes; `None` if the system does not give it.
    pub(super) fn take_buffer(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let more = bytes.saturating_sub(buffer.len());
        buffer.try_reserve_exact(more).is_ok().then_some(buffer)
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    pub(super) fn start(
        &mut self,
        mut snapshot: Snapshot,
        folder: &Path,
        keep: Keep,
        upload: Option<Upload>,
    ) -> Result<()> {
        let (step, folder) = (snapshot.step, folder.to_owned());
        let work = move || {
            let path = write_and_rotate(&snapshot, &folder, &keep, upload.as_ref());
            (std::mem::take(&mut snapshot.buffer), path)
        };
        let thread = Builder::new().name("checkpoint".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(&error.to_string()))?;
        self.running = Some((step, thread));
        Ok(())
    }

    /// The end of what was written in the background, if it has come.
    pub(super) fn poll(&mut self) -> Option<Ended> {
        let (_, thread) = self.running.as_ref()?;
        match thread.is_finished() {
            true => self.wait(),
            false => None,
        }
    }

    /// Waits for what is written in the background.
    pub(super) fn wait(&mut self) -> Option<Ended> {
        let (step, thread) = self.running.take()?;
        let ended = thread.join().map(|(buffer, path)| {
            self.buffer = buffer;
            path
        });
        Some((step, ended.unwrap_or_else(|_| Err(failed("it panicked")))))
    }
}

fn failed(problem: &str) -> Error {
    invalid!(
        Checkpoint,
        "the thread that writes checkpoints failed: {problem}"
    )
}

/// Removes older checkpoints once the new one is on the disk, and copies it where copies are asked for. That older ones could not be removed is no
/// reason to write it again.
pub(super) fn write_and_rotate(
    snapshot: &Snapshot,
    folder: &Path,
    keep: &Keep,
    upload: Option<&Upload>,
) -> Result<PathBuf> {
    let path = write(snapshot, folder)?;
    if let Err(error) = keep.rotate(folder, snapshot.step) {
        tracing::warn!(%error, "an older checkpoint stays");
    }
    if let Some(upload) = upload {
        upload.copy(&path, keep)?;
    }
    Ok(path)
}

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
    match &snapshot.parts.partial {
        Some(partial) => complete(partial, snapshot, folder),
        None => complete(&Partial::of_step(folder, snapshot.step)?, snapshot, folder),
    }
}

/// Whether this checkpoint is intact and has the same files.
fn is_saved(snapshot: &Snapshot, path: &Path) -> Result<bool> {
    let Ok(saved) = Manifest::read(path) else {
        return Ok(false);
    };
    let files = snapshot.files.len() + snapshot.parts.others.len();
    let mut others = snapshot.parts.others.iter();
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
    Ok(Checkpoint::verified(path.to_owned()).is_ok())
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
    let mut files = snapshot.parts.others.clone();
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

#[cfg(test)]
mod tests {
    use super::Writer;

    #[test]
    fn memory_that_is_not_there_is_no_panic() {
        let mut writer = Writer::default();
        assert!(writer.take_buffer(usize::MAX).is_none());
        assert!(writer.take_buffer(100).unwrap().capacity() >= 100);
    }
}
