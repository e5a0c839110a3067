use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;

use crc32fast::Hasher;
use memmap2::Mmap;
use rayon::prelude::*;

use super::manifest::Fingerprint;
use crate::error::CheckpointError;

/// One thread's share of a checksum.
const SHARE: u64 = 16 << 20;
/// What a thread reads at once.
const PIECE: u64 = 1 << 20;

/// The bytes of a file, mapped where the file system can.
#[derive(Debug)]
pub(super) enum Content {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Content {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let open = || Self::of(File::open(path)?);
        open().map_err(CheckpointError::file("read", path))
    }

    /// Opens a file, and reads all of it for its size and checksum. It is mapped afterwards, because an error of the disk or of the network
    /// in mapped memory is a signal that ends the process.
    pub(super) fn open_checked(path: &Path) -> Result<(Self, Fingerprint), CheckpointError> {
        let open = || {
            let file = File::open(path)?;
            let fingerprint = fingerprint(&file)?;
            Ok((Self::of(file)?, fingerprint))
        };
        open().map_err(CheckpointError::file("read", path))
    }

    fn of(mut file: File) -> io::Result<Self> {
        // SAFETY: nobody may change the file while it is mapped: a checkpoint's files are complete before they appear under
        // their names, and are then only removed, which keeps mapped pages. The documentation asks the same of other files.
        if let Ok(map) = unsafe { Mmap::map(&file) } {
            return Ok(Self::Mapped(map));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Self::Read(bytes))
    }
}

/// Size and checksum; large files by several threads.
fn fingerprint(file: &File) -> io::Result<Fingerprint> {
    let length = file.metadata()?.len();
    let share = |start: u64| {
        let end = start.saturating_add(SHARE).min(length);
        let mut buffer = vec![0; PIECE.min(end - start) as usize];
        let (mut hasher, mut at) = (Hasher::new(), start);
        while at < end {
            buffer.truncate(PIECE.min(end - at) as usize);
            read_exact_at(file, &mut buffer, at)?;
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
    Ok(Fingerprint::new((length, whole.finalize())))
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, at)
}

#[cfg(not(unix))]
fn read_exact_at(mut file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};

    // All threads share the file's position.
    static POSITION: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    let _alone = POSITION.lock();
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(buffer)
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
