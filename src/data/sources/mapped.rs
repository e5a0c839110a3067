use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};

use crate::error::DataError;
use crate::files;

/// A file mapped into memory, with the length that it had when it was opened: what is appended later is not seen.
#[derive(Debug)]
pub(super) struct Mapped {
    path: PathBuf,
    file: File,
    map: Mmap,
}

impl Mapped {
    /// Maps a regular file that is not empty.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let io = |reason| DataError::io(path, None, reason);
        let file = files::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(DataError::file(path, None, "is not a regular file"));
        }
        if metadata.len() == 0 {
            return Err(DataError::file(path, None, "is empty"));
        }
        let too_long = |_| DataError::file(path, None, "is longer than the address space");
        let len = usize::try_from(metadata.len()).map_err(too_long)?;
        // SAFETY: the map is only read, and whatever another process writes to the file, each byte is a valid `u8`; text is copied
        // before it is checked and used as such. Each access follows `check`, which refuses a file that is shorter than the map. If another process
        // shortens it between that check and the read, the system ends this process with SIGBUS; the types that own a map document
        // this.
        let map = unsafe { MmapOptions::new().len(len).map(&file) }.map_err(io)?;
        let path = path.to_owned();
        Ok(Self { path, file, map })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's length when it was opened.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Checks that the file still has the length that was mapped.
    pub fn check(&self) -> Result<(), DataError> {
        let io = |reason| DataError::io(&self.path, None, reason);
        let (now, len) = (self.file.metadata().map_err(io)?.len(), self.len());
        if now < len as u64 {
            let problem = format!("ends here: it was shortened from {len} bytes while it was open");
            return Err(DataError::file(&self.path, now, problem));
        }
        Ok(())
    }

    /// The bytes of a range, after [`check`](Self::check).
    pub fn bytes(&self, range: Range<usize>) -> Result<&[u8], DataError> {
        self.check()?;
        let outside = || {
            let problem = format!("ends at byte {}, before byte {}", self.len(), range.end);
            DataError::file(&self.path, range.start as u64, problem)
        };
        self.map.get(range.clone()).ok_or_else(outside)
    }

    /// The bytes of a range for which [`check`](Self::check) has succeeded; none outside of the file.
    pub fn checked(&self, range: Range<usize>) -> &[u8] {
        self.map.get(range).unwrap_or_default()
    }
}
