use std::collections::BTreeMap;
use std::path::Path;

use super::content::{open, open_checked, read_all};
use super::document::{Document, STATE};
use super::manifest::{Fingerprint, MANIFEST, Manifest};
use super::name::Name;
use super::unfit::unread;
use crate::error::CheckpointError;
use crate::fixed_file::FixedFile;

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
    match document.rescued_from {
        Some(_) => Err(damaged("it is a rescue, without tensors".to_owned())),
        None => Ok((document, files)),
    }
}

pub(super) fn read_manifest(path: &Path) -> Result<Manifest, CheckpointError> {
    let file = open(&path.join(MANIFEST)).map_err(unread(path, MANIFEST))?;
    if file.len() > MOST {
        let problem = format!("{MANIFEST} has {} bytes, more than {MOST}", file.len());
        return Err(CheckpointError::damaged(path, problem));
    }
    Manifest::read(path, &read_all(&file).map_err(unread(path, MANIFEST))?)
}
