use std::env;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libloading::Library;

use super::call::{Call, LOADER, LoadError};
use super::rehearse;

/// Loads a library for good: unloading would run its destructors, which can hang as well.
///
/// A library that is new to the process is loaded if a child process loads it and makes the `call` within `limit`. It must be a regular file.
///
/// # Safety
/// Running the library's initializers and the `call` must be sound.
pub(crate) unsafe fn load(
    path: &Path,
    call: Call,
    limit: Duration,
) -> Result<ManuallyDrop<Library>, LoadError> {
    let started = Instant::now();
    if let Some(file) = first_candidate(path).filter(|file| !file.is_file()) {
        let reason = format!("{} is not a regular file", file.display());
        return Err(LoadError::Absent(reason));
    }
    // SAFETY: the caller vouches for the library and the call.
    unsafe { rehearse(path, call, limit) }?;
    let left = limit.saturating_sub(started.elapsed());
    let hangs = || LoadError::Hangs(format!("loading a library before {}", path.display()));
    let _lock = LOADER.try_lock_for(left).ok_or_else(hangs)?;
    // SAFETY: the caller vouches for the library.
    let library = unsafe { Library::new(path) };
    let library = library.map_err(|error| LoadError::Absent(error.to_string()));
    library.map(ManuallyDrop::new)
}

/// The file that the loader opens first, as far as that is known without reading the loader's cache.
fn first_candidate(path: &Path) -> Option<PathBuf> {
    if path.components().count() > 1 {
        return Some(path.to_owned()).filter(|path| path.exists());
    }
    let folders = env::var_os("LD_LIBRARY_PATH")?;
    let mut files = env::split_paths(&folders).map(|folder| folder.join(path));
    files.find(|file| file.exists())
}
