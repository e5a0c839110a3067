//! The JSON files of a checkpoint: `state.json`, and the manifest, which has its own checksum. The version is read first, because another one has
//! other fields.

use std::collections::BTreeMap;
use std::io;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::Path;

use crc32fast::Hasher;
use memchr::memmem::rfind;
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::CheckpointError;
use crate::files::is_plain;
use crate::fixed_file::FixedFile;
use crate::testing::{FileOperation, inject_file};

pub(super) const STATE: &str = "state.json";

/// What is saved besides tensors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) version: u32,
    /// The crate and its version.
    pub(super) written_by: String,
    pub(super) step: u64,
    /// Finite numbers.
    pub(super) metrics: BTreeMap<String, f64>,
    /// The metadata of the trainer's state.
    pub(super) training: BTreeMap<String, String>,
    /// The caller's own values.
    pub(super) values: BTreeMap<String, Value>,
}

impl Document {
    pub(super) fn new(step: u64) -> Self {
        Self {
            version: VERSION,
            written_by: concat!("candle-headroom ", env!("CARGO_PKG_VERSION")).to_owned(),
            step,
            ..Self::default()
        }
    }

    /// Reads that of the checkpoint at `path`.
    pub(super) fn read(path: &Path, file: &FixedFile) -> Result<Self, CheckpointError> {
        read_json(path, STATE, &read_all(file).map_err(unread(path, STATE))?)
    }
}

/// Opens a file of a checkpoint or a model.
pub(super) fn open(path: &Path) -> Result<FixedFile, CheckpointError> {
    FixedFile::open(path).map_err(CheckpointError::file("read", path))
}

/// The bytes of a file that are needed at once.
pub(super) fn read_all(file: &FixedFile) -> Result<Vec<u8>, CheckpointError> {
    let read = file.read(0..file.len());
    read.map_err(CheckpointError::file("read", file.path()))
}

/// Of a checkpoint's JSON files. In version 1 rank 0 wrote all state.
pub(super) const VERSION: u32 = 2;

/// The error of reading a file of the checkpoint at `path`. A file that is not there is damage; one that cannot be read may be intact.
pub(super) fn unread(path: &Path, file: &str) -> impl FnOnce(CheckpointError) -> CheckpointError {
    move |error| match error {
        CheckpointError::File { reason, .. }
            if matches!(reason.kind(), NotFound | NotADirectory) =>
        {
            CheckpointError::damaged(path, format!("{file}: {reason}"))
        }
        other => other,
    }
}

/// Reads a JSON file of the checkpoint at `path`. Its version comes first, because another one has other fields.
pub(super) fn read_json<T: DeserializeOwned>(
    path: &Path,
    file: &str,
    bytes: &[u8],
) -> Result<T, CheckpointError> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let wrong =
        |error: serde_json::Error| CheckpointError::damaged(path, format!("{file}: {error}"));
    match serde_json::from_slice(bytes).map_err(wrong)? {
        Head { version: VERSION } => serde_json::from_slice(bytes).map_err(wrong),
        Head { version } => {
            let problem = format!(
                "it has version {version}, this crate reads version {VERSION}: use the version that wrote it, or move it away"
            );
            Err(CheckpointError::file("read", path)(io::Error::other(
                problem,
            )))
        }
    }
}

pub(super) const MANIFEST: &str = "manifest.json";
/// The longest manifest in bytes, of more than 100,000 files.
const MOST: u64 = 16 << 20;

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

/// One thread's share of a checksum.
const SHARE: u64 = 16 << 20;
/// What a thread reads at once.
const PIECE: u64 = 1 << 20;

impl Fingerprint {
    pub(super) fn new((bytes, crc32): (u64, u32)) -> Self {
        Self {
            bytes,
            crc32: hexadecimal(crc32),
        }
    }

    /// Reads all of a file; large ones by several threads.
    pub(super) fn of(file: &FixedFile) -> Result<Self, CheckpointError> {
        let length = file.len();
        let share = |start: u64| -> io::Result<Hasher> {
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
        let read = || -> io::Result<Self> {
            inject_file(FileOperation::Read, file.path())?;
            let shares = match length <= SHARE {
                true => vec![share(0)?],
                false => {
                    let starts = (0..length.div_ceil(SHARE)).into_par_iter();
                    let shares = starts.map(|index| share(index * SHARE));
                    shares.collect::<io::Result<Vec<_>>>()?
                }
            };
            file.check()?;
            let mut whole = Hasher::new();
            shares.iter().for_each(|share| whole.combine(share));
            Ok(Self::new((length, whole.finalize())))
        };
        read().map_err(CheckpointError::file("read", file.path()))
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
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        Self::of(path, open(&path.join(MANIFEST)))
    }

    /// Reads the manifest in this file, of the checkpoint at `path`.
    pub(super) fn of(
        path: &Path,
        file: Result<FixedFile, CheckpointError>,
    ) -> Result<Self, CheckpointError> {
        let file = file.map_err(unread(path, MANIFEST))?;
        if file.len() > MOST {
            let problem = format!("{MANIFEST} has {} bytes, more than {MOST}", file.len());
            return Err(CheckpointError::damaged(path, problem));
        }
        let bytes = read_all(&file).map_err(unread(path, MANIFEST))?;
        let damaged =
            |problem: String| CheckpointError::damaged(path, format!("{MANIFEST}: {problem}"));
        if !is_sealed(&bytes) {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        let manifest: Self = read_json(path, MANIFEST, &bytes)?;
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
        let mut hasher = Hasher::new();
        hasher.update(head);
        hasher.update(tail);
        Some(hexadecimal(hasher.finalize()).as_bytes() == crc32)
    };
    is_sealed() == Some(true)
}

fn hexadecimal(crc32: u32) -> String {
    format!("{crc32:08x}")
}
