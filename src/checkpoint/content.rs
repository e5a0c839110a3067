use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;
use rayon::prelude::*;

use super::manifest::Fingerprint;
use crate::error::CheckpointError;

/// One thread's share of a checksum.
const SHARE: usize = 16 << 20;

/// The bytes of a file, mapped where the file system can.
#[derive(Debug)]
pub(super) enum Content {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Content {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let open = || {
            let mut file = File::open(path)?;
            // SAFETY: nobody may change the file while it is mapped: a checkpoint's files are complete before they appear under
            // their names, and are then only removed, which keeps mapped pages. The documentation asks the same of other files.
            if let Ok(map) = unsafe { Mmap::map(&file) } {
                return Ok(Self::Mapped(map));
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(Self::Read(bytes))
        };
        open().map_err(CheckpointError::file("read", path))
    }

    /// Size and checksum; large files by several threads.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        if self.len() <= SHARE {
            return Fingerprint::of(self);
        }
        let shares = self.par_chunks(SHARE).map(|share| {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(share);
            hasher
        });
        let shares: Vec<_> = shares.collect();
        let mut whole = crc32fast::Hasher::new();
        shares.iter().for_each(|share| whole.combine(share));
        Fingerprint::new((self.len() as u64, whole.finalize()))
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
        }
    }
}
