//! Every change that a checkpoint makes to the file system, so that tests can let each one fail.

use std::fs::{self, File};
use std::io::ErrorKind::{InvalidInput, Unsupported};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;

use crate::error::CheckpointError;
use crate::files;
use crate::testing::{FileOperation, inject_file};

/// Smaller pieces are collected, so that a file of many small tensors takes few system calls.
const COLLECTED: usize = 1 << 20;

/// A new file, its size and its checksum so far.
#[derive(Debug)]
pub(super) struct NewFile {
    path: PathBuf,
    file: File,
    collected: Vec<u8>,
    hasher: Hasher,
    size: u64,
}

impl NewFile {
    pub(super) fn create(path: PathBuf) -> Result<Self, CheckpointError> {
        let create = || {
            inject_file(FileOperation::Create, &path)?;
            File::create_new(&path)
        };
        Ok(Self {
            file: create().map_err(CheckpointError::file("create", &path))?,
            path,
            collected: Vec::new(),
            hasher: Hasher::new(),
            size: 0,
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if self.collected.len() + bytes.len() > COLLECTED {
            self.write_collected()?;
        }
        match bytes.len() < COLLECTED {
            true => self.collected.extend_from_slice(bytes),
            false => self.write_through(bytes)?,
        }
        Ok(())
    }

    /// Writes what is still collected, and frees its memory.
    pub(super) fn end(&mut self) -> Result<(), CheckpointError> {
        self.write_collected()?;
        self.collected = Vec::new();
        Ok(())
    }

    /// Waits until the file, which was [ended](Self::end), is on the disk, and returns its size and its CRC-32.
    pub(super) fn finish(self) -> Result<(u64, u32), CheckpointError> {
        let sync = || {
            inject_file(FileOperation::Sync, &self.path)?;
            self.file.sync_all()
        };
        sync().map_err(CheckpointError::file("flush", &self.path))?;
        Ok((self.size, self.hasher.finalize()))
    }

    fn write_collected(&mut self) -> Result<(), CheckpointError> {
        let mut collected = std::mem::take(&mut self.collected);
        self.write_through(&collected)?;
        collected.clear();
        self.collected = collected;
        Ok(())
    }

    /// Writes pieces that the processor's cache holds, so that the checksum reads them from there.
    fn write_through(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        for piece in bytes.chunks(COLLECTED) {
            let mut write = || {
                inject_file(FileOperation::Write, &self.path)?;
                files::write_all(&mut self.file, piece)
            };
            write().map_err(CheckpointError::file("write", &self.path))?;
            self.hasher.update(piece);
            self.size += piece.len() as u64;
        }
        Ok(())
    }
}

pub(super) fn create_folder(path: &Path) -> Result<(), CheckpointError> {
    inject_file(FileOperation::Create, path)
        .and_then(|()| fs::create_dir(path))
        .map_err(CheckpointError::file("create", path))
}

/// Waits until the entries of a folder are on the disk. Some network file systems cannot flush a folder, and elsewhere than on Unix
/// it cannot be opened.
pub(super) fn sync_folder(path: &Path) -> Result<(), CheckpointError> {
    let sync = || {
        inject_file(FileOperation::Sync, path)?;
        if cfg!(unix) {
            match File::open(path)?.sync_all() {
                Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => {}
                other => return other,
            }
        }
        Ok(())
    };
    sync().map_err(CheckpointError::file("flush", path))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    inject_file(FileOperation::Rename, from)
        .and_then(|()| fs::rename(from, to))
        .map_err(CheckpointError::file("rename", from))
}

/// Removes a folder and the files in it. Of a link only the link itself is removed.
pub(super) fn remove_folder(path: &Path) -> Result<(), CheckpointError> {
    let remove = || {
        if !fs::symlink_metadata(path)?.is_dir() {
            inject_file(FileOperation::Remove, path)?;
            return fs::remove_file(path);
        }
        for entry in fs::read_dir(path)? {
            let entry = entry?.path();
            inject_file(FileOperation::Remove, &entry)?;
            fs::remove_file(entry)?;
        }
        inject_file(FileOperation::Remove, path)?;
        fs::remove_dir(path)
    };
    remove().map_err(CheckpointError::file("remove", path))
}
