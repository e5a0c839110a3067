//! Compares a checkpoint's files with its manifest, by their sizes and CRC-32. Large files are read by several threads, and must stay as they are.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crc32fast::Hasher;
use rayon::prelude::*;

use super::document::{Document, Fingerprint, MANIFEST, Manifest, STATE, unread};
use super::name::Name;
use crate::error::CheckpointError;
use crate::fixed_file::FixedFile;
use crate::testing::{FileOperation, inject_file};

/// The longest manifest in bytes, of more than 100,000 files.
const MOST: u64 = 16 << 20;

pub(super) type Verified = (Document, BTreeMap<String, FixedFile>);

/// Compares every file with the manifest.
pub(super) fn verified(path: &Path) -> Result<Verified, CheckpointError> {
    let damaged = |problem: String| CheckpointError::damaged(path, problem);
    let manifest = read_manifest(path)?;
    let folder = path.file_name().and_then(|name| name.to_str());
    let name = folder.and_then(Name::parse);
    if let Some(name) = name.filter(|name| name.step != manifest.step) {
        return Err(damaged(format!(
            "{MANIFEST} is that of step {}, not {}",
            manifest.step, name.step
        )));
    }
    let mut files = BTreeMap::new();
    for (file, expected) in &manifest.files {
        let open = open_checked(&path.join(file));
        let (content, Fingerprint { bytes, crc32 }) = open.map_err(unread(path, file))?;
        if bytes != expected.bytes {
            let problem = format!("{file} has {bytes} bytes, not {}", expected.bytes);
            return Err(damaged(problem));
        }
        if crc32 != expected.crc32 {
            let problem = format!("{file} has checksum {crc32}, not {}", expected.crc32);
            return Err(damaged(problem));
        }
        files.insert(file.clone(), content);
    }
    let state = files.get(STATE);
    let state = state.ok_or_else(|| damaged(format!("{STATE} is missing")))?;
    let document = Document::read(path, &read_all(state).map_err(unread(path, STATE))?)?;
    Ok((document, files))
}

pub(super) fn read_manifest(path: &Path) -> Result<Manifest, CheckpointError> {
    let file = open(&path.join(MANIFEST)).map_err(unread(path, MANIFEST))?;
    if file.len() > MOST {
        let problem = format!("{MANIFEST} has {} bytes, more than {MOST}", file.len());
        return Err(CheckpointError::damaged(path, problem));
    }
    Manifest::read(path, &read_all(&file).map_err(unread(path, MANIFEST))?)
}

/// One thread's share of a checksum.
const SHARE: u64 = 16 << 20;
/// What a thread reads at once.
const PIECE: u64 = 1 << 20;

pub(super) fn open(path: &Path) -> Result<FixedFile, CheckpointError> {
    FixedFile::open(path).map_err(CheckpointError::file("read", path))
}

/// Opens a file, and reads all of it for its size and checksum.
pub(super) fn open_checked(path: &Path) -> Result<(FixedFile, Fingerprint), CheckpointError> {
    let file = open(path)?;
    let fingerprint = fingerprint(&file).map_err(CheckpointError::file("read", path))?;
    Ok((file, fingerprint))
}

/// The bytes of a file that are needed at once.
pub(super) fn read_all(file: &FixedFile) -> Result<Vec<u8>, CheckpointError> {
    let read = file.read(0..file.len());
    read.map_err(CheckpointError::file("read", file.path()))
}

/// Size and checksum; large files by several threads.
fn fingerprint(file: &FixedFile) -> io::Result<Fingerprint> {
    inject_file(FileOperation::Read, file.path())?;
    let length = file.len();
    let share = |start: u64| {
        let end = start.saturating_add(SHARE).min(length);
        let mut buffer = vec![0; PIECE.min(end - start) as usize];
        let (mut hasher, mut at) = (Hasher::new(), start);
        while at < end {
            buffer.truncate(PIECE.min(end - at) as usize);
            file.read_at(&mut buffer, at)?;
            hasher.update(&buffer);
            at += buffer.len() as u64;
        }
        Ok(hasher)
    };
    let whole = match length <= SHARE {
        true => share(0)?,
        false => {
            let starts = (0..length.div_ceil(SHARE)).into_par_iter();
            let shares = starts.map(|index| share(index * SHARE));
            let shares = shares.collect::<io::Result<Vec<_>>>()?;
            let mut whole = Hasher::new();
            shares.iter().for_each(|share| whole.combine(share));
            whole
        }
    };
    file.check()?;
    Ok(Fingerprint::new((length, whole.finalize())))
}
