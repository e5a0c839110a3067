use std::env;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libloading::Library;
use parking_lot::Mutex;

use super::{is_loaded, rehearse};

/// A function that the child process calls after it has loaded the library.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) name: &'static CStr,
    /// Calls the function at this address.
    pub(crate) make: unsafe fn(*mut c_void),
}

/// Why a library was not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadError {
    /// There is no such library, or it is not one: the loader's message.
    Absent(String),
    /// What did not return in a child process: `loading libcuda.so.1`, or `cuInit of libcuda.so.1`.
    Hangs(String),
    /// What ended a child process, and how.
    Crashes(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(reason) | Self::Crashes(reason) => f.write_str(reason),
            Self::Hangs(what) => write!(f, "{what} does not return"),
        }
    }
}

/// Held while this crate loads a library or forks, because a child that is forked in the middle of a `dlopen` could fail for that alone.
pub(super) static LOADER: Mutex<()> = Mutex::new(());

/// Loads a library for good: unloading would run its destructors, which can hang as well.
///
/// A library that the process has not loaded yet is first loaded by a child process, which then makes the `calls`. The child gets
/// `limit`; if it does not finish in time, the library is not loaded here. Only a regular file is loaded.
///
/// # Safety
/// Running the library's initializers and the `calls` must be sound.
pub(crate) unsafe fn load(
    path: &Path,
    calls: &[Call],
    limit: Duration,
) -> Result<ManuallyDrop<Library>, LoadError> {
    let started = Instant::now();
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    if let Some(path) = first_candidate(path).filter(|path| !path.is_file()) {
        let reason = format!("{name}: {} is not a regular file", path.display());
        return Err(LoadError::Absent(reason));
    }
    if !is_loaded(path) {
        // SAFETY: the caller vouches for the library and the calls.
        unsafe { rehearse(path, calls, limit) }.map_err(|trouble| trouble.describe(&name))?;
    }
    let left = limit.saturating_sub(started.elapsed());
    let hangs = || LoadError::Hangs(format!("loading a library before {name}"));
    let _lock = LOADER.try_lock_for(left).ok_or_else(hangs)?;
    // SAFETY: the caller vouches for the library.
    let library = unsafe { Library::new(path) };
    library
        .map(ManuallyDrop::new)
        .map_err(|error| LoadError::Absent(error.to_string()))
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

/// How a child process failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// In the call of this name, or while the library was loaded.
    Hung(Option<&'static CStr>),
    /// Likewise, with the way in which the process ended.
    Crashed(Option<&'static CStr>, String),
    NotStarted(std::io::Error),
}

impl Trouble {
    fn describe(self, library: &str) -> LoadError {
        let doing = |call: Option<&CStr>| match call {
            Some(call) => format!("{} of {library}", call.to_string_lossy()),
            None => format!("loading {library}"),
        };
        match self {
            Self::Hung(call) => LoadError::Hangs(doing(call)),
            Self::Crashed(call, how) => {
                LoadError::Crashes(format!("{} ends a process by {how}", doing(call)))
            }
            Self::NotStarted(error) => LoadError::Crashes(format!(
                "no child process could be started to load {library}: {error}"
            )),
        }
    }
}
