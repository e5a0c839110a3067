//! Pieces of objects in a folder of this machine, for all of its processes.
//!
//! A file has the piece's bytes, then its key, and then the CRC-32 of both. It is not flushed: what a machine that stops has left of it does not
//! match its checksum.

use std::fs::{self, File};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::files;

#[derive(Debug)]
pub(super) struct Folder {
    folder: PathBuf,
    most: u64,
    /// Bytes written by this process since it last looked at the folder. Locked while a file is written, so that each finds the room it needs.
    unseen: Mutex<u64>,
    /// When writing failed, if it has not succeeded since.
    failed: Mutex<Option<Instant>>,
}

const PART: usize = 256 << 10;
/// Between the hash in a name and what follows it.
const MARK: &str = ".piece";
/// Writing that failed is tried again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// A file without its name that was not written for so long has no writer any more.
const ABANDONED: Duration = Duration::from_secs(60);

impl Folder {
    pub(super) fn open(folder: &Path, most: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            most,
            // Look at once.
            unseen: Mutex::new(most),
            failed: Mutex::new(None),
        })
    }

    /// Another key with the same name does not match what the file says.
    fn path(&self, key: &str) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.folder.join(format!("{:016x}{MARK}", hasher.finish()))
    }

    /// Reads a piece, if it is there and intact.
    pub(super) fn read(&self, key: &str, len: u64) -> Option<Bytes> {
        let path = self.path(key);
        let file = files::open(&path).ok()?;
        if let Some(bytes) = read(&file, key, len).ok().flatten() {
            // By this the oldest are known. It is not possible in a folder of another user's.
            let _ = file.set_modified(SystemTime::now());
            return Some(bytes.into());
        }
        // It goes also where its piece cannot be written again.
        let _ = fs::remove_file(&path);
        let path = path.display();
        tracing::warn!(%path, "a file of the cache is damaged: its piece is read again");
        None
    }

    /// Writes a piece, unless writing has just failed.
    pub(super) fn write(&self, key: &str, bytes: &[u8]) {
        if self.failed.lock().is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        let written = self.try_write(key, bytes);
        let now = written.is_err().then(Instant::now);
        let before = std::mem::replace(&mut *self.failed.lock(), now);
        if let (None, Err(error)) = (before, written) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "the cache cannot be written: reading goes on without it");
        }
    }

    fn try_write(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64 + key.len() as u64 + 4;
        let mut unseen = self.unseen.lock();
        *unseen += len;
        if *unseen > self.most / 64 {
            self.make_room(len)?;
            *unseen = 0;
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(bytes);
        hasher.update(key.as_bytes());
        let crc32 = hasher.finalize().to_le_bytes();
        let path = self.path(key);
        let mut partial = path.clone().into_os_string();
        // Containers that share the folder may have processes of the same number.
        partial.push(format!("-{:016x}", RandomState::new().hash_one(())));
        let write = || {
            let mut file = File::create(&partial)?;
            let mut parts = [bytes, key.as_bytes(), &crc32].into_iter();
            parts.try_for_each(|part| files::write_all(&mut file, part))?;
            match fs::rename(&partial, &path) {
                // Another process took it for what a killed one left.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                renamed => renamed,
            }
        };
        write().inspect_err(|_| {
            // A full disk needs the space.
            let _ = fs::remove_file(&partial);
        })
    }

    /// Removes the files that were not used for the longest time, also what killed processes left.
    fn make_room(&self, len: u64) -> io::Result<()> {
        let (mut files, mut total) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let rest = name
                .to_str()
                .and_then(|name| name.get(16..)?.strip_prefix(MARK));
            // Another process may have removed it.
            if let (Some(rest), Ok(metadata)) = (rest, entry.metadata()) {
                let modified = metadata.modified()?;
                let is_old = modified.elapsed().is_ok_and(|since| since > ABANDONED);
                total += metadata.len();
                if rest.is_empty() || is_old {
                    files.push((modified, metadata.len(), entry.path()));
                }
            }
        }
        files.sort();
        // The other processes write, too, until they look.
        let most = (self.most - self.most / 8).saturating_sub(len);
        for (_, bytes, path) in files {
            if total <= most {
                break;
            }
            let _ = fs::remove_file(path);
            total -= bytes;
        }
        Ok(())
    }
}

/// Reads the file of a piece. What is read of it at once stays in the processor's cache until it is compared.
fn read(mut file: &File, key: &str, len: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; len as usize];
    let mut hasher = crc32fast::Hasher::new();
    for part in bytes.chunks_mut(PART) {
        file.read_exact(part)?;
        hasher.update(part);
    }
    let mut end = Vec::new();
    file.take(key.len() as u64 + 5).read_to_end(&mut end)?;
    hasher.update(key.as_bytes());
    let expected = [key.as_bytes(), &hasher.finalize().to_le_bytes()].concat();
    Ok((end == expected).then_some(bytes))
}
