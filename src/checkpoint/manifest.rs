use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(super) const MANIFEST: &str = "manifest.json";
const VERSION: u32 = 1;

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

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::new((bytes.len() as u64, crc32fast::hash(bytes)))
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

    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut sealed = self.clone();
        sealed.crc32.clear();
        sealed.crc32 = hexadecimal(crc32fast::hash(&serde_json::to_vec_pretty(&sealed)?));
        serde_json::to_vec_pretty(&sealed)
    }

    /// Reads a manifest that is, byte by byte, as this crate writes it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("{MANIFEST}: {error}"))?;
        if manifest.to_bytes().ok().as_deref() != Some(bytes) {
            return Err(format!("{MANIFEST}: its checksum does not match"));
        }
        match manifest.version {
            VERSION => Ok(manifest),
            other => Err(format!(
                "{MANIFEST}: version {other}, this crate reads version {VERSION}"
            )),
        }
    }
}

fn hexadecimal(crc32: u32) -> String {
    format!("{crc32:08x}")
}
