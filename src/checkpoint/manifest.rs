use std::collections::BTreeMap;
use std::path::Path;

use memchr::memmem::rfind;
use serde::{Deserialize, Serialize};

use super::unfit::{VERSION, read_json};
use crate::error::CheckpointError;
use crate::files::is_plain;

pub(super) const MANIFEST: &str = "manifest.json";

/// The files of a checkpoint. It is written last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    version: u32,
    pub(super) step: u64,
    pub(super) files: BTreeMap<String, Fingerprint>,
    /// CRC-32 of the manifest as it is with an empty text here.
    crc32: String,
}

/// What a file must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fingerprint {
    pub(super) bytes: u64,
    pub(super) crc32: String,
}

impl Fingerprint {
    pub(super) fn new((bytes, crc32): (u64, u32)) -> Self {
        Self {
            bytes,
            crc32: hexadecimal(crc32),
        }
    }
}

impl Manifest {
    pub(super) fn new(step: u64, files: BTreeMap<String, Fingerprint>) -> Self {
        Self {
            version: VERSION,
            step,
            files,
            crc32: String::new(),
        }
    }

    pub(super) fn into_bytes(mut self) -> serde_json::Result<Vec<u8>> {
        self.crc32 = hexadecimal(crc32fast::hash(&serde_json::to_vec_pretty(&self)?));
        serde_json::to_vec_pretty(&self)
    }

    /// Reads the manifest of the checkpoint at `path`.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let damaged =
            |problem: String| CheckpointError::damaged(path, format!("{MANIFEST}: {problem}"));
        if !is_sealed(bytes) {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        let manifest: Self = read_json(path, MANIFEST, bytes)?;
        match manifest.files.keys().find(|file| !is_plain(file)) {
            Some(file) => Err(damaged(format!("`{file}` is not a file of this folder"))),
            None => Ok(manifest),
        }
    }
}

/// Whether the checksum at the end is that of the rest, as in every version. So each byte is as this crate wrote it.
fn is_sealed(bytes: &[u8]) -> bool {
    const FIELD: &[u8] = b"\"crc32\": \"";
    let is_sealed = || {
        let (head, rest) = bytes.split_at_checked(rfind(bytes, FIELD)? + FIELD.len())?;
        let (crc32, tail) = rest.split_at_checked(8)?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(head);
        hasher.update(tail);
        Some(hexadecimal(hasher.finalize()).as_bytes() == crc32)
    };
    is_sealed() == Some(true)
}

fn hexadecimal(crc32: u32) -> String {
    format!("{crc32:08x}")
}
