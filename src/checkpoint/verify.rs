use std::collections::BTreeMap;
use std::path::Path;

use super::content::Content;
use super::document::{Document, STATE};
use super::manifest::{Fingerprint, MANIFEST, Manifest};
use super::name::Name;
use crate::error::CheckpointError;

pub(super) type Verified = (Document, BTreeMap<String, Content>);

/// Compares every file with the manifest. The error says what is wrong.
pub(super) fn verified(path: &Path) -> Result<Verified, String> {
    let open = |file: &str| {
        Content::open(&path.join(file)).map_err(|error| match error {
            CheckpointError::File { reason, .. } => format!("{file}: {reason}"),
            other => other.to_string(),
        })
    };
    let manifest = Manifest::read(&open(MANIFEST)?)?;
    let folder = path.file_name().and_then(|name| name.to_str());
    let name = folder.and_then(Name::parse);
    if let Some(name) = name.filter(|name| name.step != manifest.step) {
        return Err(format!(
            "{MANIFEST} is that of step {}, not {}",
            manifest.step, name.step
        ));
    }
    let mut files = BTreeMap::new();
    for (file, expected) in &manifest.files {
        let content = open(file)?;
        let Fingerprint { bytes, crc32 } = content.fingerprint();
        if bytes != expected.bytes {
            return Err(format!("{file} has {bytes} bytes, not {}", expected.bytes));
        }
        if crc32 != expected.crc32 {
            return Err(format!(
                "{file} has checksum {crc32}, not {}",
                expected.crc32
            ));
        }
        files.insert(file.clone(), content);
    }
    let state = files.get(STATE).ok_or(format!("{STATE} is missing"))?;
    let document = Document::read(state)?;
    match document.rescued_from {
        Some(_) => Err("it is a rescue, without tensors".to_owned()),
        None => Ok((document, files)),
    }
}
