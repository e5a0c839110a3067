//! The folder in which the ranks of one communicator exchange files. Files appear whole, because they are written under another name.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// One rank's view of the folder.
#[derive(Debug)]
pub struct Exchange {
    folder: PathBuf,
    rank: usize,
    size: usize,
}

/// Makes a folder for a new communicator, in `SIMULATED_NCCL_FOLDER`, or in the machine's shared memory.
pub fn new_folder() -> io::Result<PathBuf> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let shared = || Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let chosen = env::var_os("SIMULATED_NCCL_FOLDER").map(PathBuf::from);
    let base = chosen.or_else(shared).unwrap_or_else(env::temp_dir);
    let folder = base.join(format!("simulated-nccl-{}-{number}", process::id()));
    fs::create_dir(&folder)?;
    Ok(folder)
}

impl Exchange {
    pub fn new(folder: &Path, rank: usize, size: usize) -> Exchange {
        let folder = folder.to_owned();
        Exchange { folder, rank, size }
    }

    fn path(&self, what: &str, rank: usize) -> PathBuf {
        self.folder.join(format!("{what}-{rank}"))
    }

    /// Gives these bytes to all ranks.
    pub fn give(&self, what: &str, parts: &[&[u8]]) -> io::Result<()> {
        let path = self.path(what, self.rank);
        let part = path.with_extension("part");
        let mut file = File::create(&part)?;
        for part in parts {
            file.write_all(part)?;
        }
        fs::rename(part, path)
    }

    /// Whether all ranks have given theirs.
    pub fn is_complete(&self, what: &str) -> bool {
        (0..self.size).all(|rank| self.path(what, rank).exists())
    }

    /// Reads a part of what a rank has given.
    pub fn take(&self, what: &str, rank: usize, start: u64, to: &mut [u8]) -> io::Result<()> {
        let mut file = File::open(self.path(what, rank))?;
        file.seek(SeekFrom::Start(start))?;
        // Without computing, zeros are not given.
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read(rest)? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Removes what this rank has given, which all have read.
    pub fn clear(&self, what: &str) {
        let _ = fs::remove_file(self.path(what, self.rank));
    }

    /// Leaves. The last rank removes the folder.
    pub fn leave(&self) {
        // It fails where a test has removed the folder, which is as good.
        let _ = self.give("left", &[]);
        if self.is_complete("left") {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
