//! Calls that may never return, such as those into a driver in trouble.
//!
//! Nothing can end such a call from outside: [`Task`] leaves it behind in its thread. [`load`] loads a library only after another process has,
//! because one that hangs in its initializers holds the loader's lock, without which no thread of the process can start on older systems, and no
//! process can end. A call that hangs later holds no such lock.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two looks at a child.
const PAUSE: Duration = Duration::from_millis(2);

/// A library that is loaded for good: unloading would run its destructors, which can hang as well.
pub type Loaded = ManuallyDrop<libloading::Library>;

/// The path of a library, or its name for the loader, whose code may run in this process.
#[derive(Debug, Clone)]
pub struct Trusted(PathBuf);

impl Trusted {
    /// Vouches for a library.
    ///
    /// # Safety
    /// It must be sound to load the library, and to call its functions as those of NVIDIA's library that it stands for.
    pub unsafe fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Why a library was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There is no such library, or it is not one: the loader's message.
    #[error("{0}")]
    Absent(String),
    /// What does not return.
    #[error("{0} does not return")]
    Hangs(String),
    /// How another process ended.
    #[error("{0}")]
    Crashes(String),
}

/// Loads a library; on Linux only after another process has loaded it within `limit`.
pub fn load(library: &Trusted, limit: Duration) -> Result<Loaded, LoadError> {
    rehearse(library.path(), limit)?;
    // SAFETY: who has made the value vouches for the library's initializers.
    let library = unsafe { libloading::Library::new(library.path()) };
    let library = library.map_err(|error| LoadError::Absent(error.to_string()));
    library.map(ManuallyDrop::new)
}

/// Loads the first of these libraries that exists, as [`load`] does. The error is about the first; `name` is missing where there is none.
pub fn load_first(
    libraries: &[Trusted],
    name: &str,
    limit: Duration,
) -> Result<(Trusted, Loaded), LoadError> {
    let mut absent = None;
    for library in libraries {
        match load(library, limit) {
            Ok(loaded) => return Ok((library.clone(), loaded)),
            Err(error @ LoadError::Absent(_)) => absent = absent.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(absent.unwrap_or_else(|| LoadError::Absent(format!("{name}: not found"))))
}

/// Loads a library in a new process, once. `Ok` also means that the loader refuses the library, which it then does in this process too.
///
/// The process is the program `true`, into which Linux's loader takes the library by `LD_PRELOAD`. It is started without a copy of this
/// process's memory, which may be registered with a network adapter or a GPU. Without such a program nothing is tried.
fn rehearse(path: &Path, limit: Duration) -> Result<(), LoadError> {
    static PASSED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let passed = || PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    if cfg!(not(target_os = "linux")) || passed().iter().any(|it| it == path) {
        return Ok(());
    }
    let mut libraries = path.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_PRELOAD") {
        libraries.push(":");
        libraries.push(more);
    }
    let mut command = Command::new("true");
    command.env("LD_PRELOAD", libraries).stdin(Stdio::null());
    let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return Ok(());
    };
    let (what, started) = (format!("loading {}", path.display()), Instant::now());
    loop {
        match child.try_wait() {
            Ok(Some(status)) if !status.success() => {
                let reason = format!("{what} ends a process ({status})");
                return Err(LoadError::Crashes(reason));
            }
            Ok(None) if started.elapsed() < limit => thread::sleep(PAUSE),
            Ok(None) => {
                let _ = child.kill();
                // In a thread, since a child that hangs inside the kernel ends late or never. Without one it stays a zombie.
                let reaper = thread::Builder::new().name("headroom-child".to_owned());
                let _ = reaper.spawn(move || child.wait());
                return Err(LoadError::Hangs(what));
            }
            // A program that ignores SIGCHLD is not told how it ended.
            Ok(Some(_)) | Err(_) => break,
        }
    }
    passed().push(path.to_owned());
    Ok(())
}

/// Work in a thread of its own.
#[derive(Debug)]
pub struct Task<T>(Receiver<Outcome>, PhantomData<fn() -> T>);

/// A result of any type, so that threads and channels are compiled once.
type Outcome = Box<dyn Any + Send>;

/// Why a [`Task`] has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// The thread still runs and is left behind.
    TimedOut,
    /// The work panicked, or no thread could be started.
    Stopped,
}

impl<T: Send + 'static> Task<T> {
    /// Starts it.
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let work = Box::new(move || -> Outcome { Box::new(work()) });
        Self(start(name, work), PhantomData)
    }

    /// Waits for the result for at most `limit`.
    pub fn wait(self, limit: Duration) -> Result<T, Unfinished> {
        let outcome = self.0.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => Unfinished::TimedOut,
            RecvTimeoutError::Disconnected => Unfinished::Stopped,
        })?;
        // It always has the type that `start` was called with.
        let result = outcome.downcast().map_err(|_| Unfinished::Stopped)?;
        Ok(*result)
    }
}

fn start(name: &str, work: Box<dyn FnOnce() -> Outcome + Send>) -> Receiver<Outcome> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name(name.to_owned());
    // Without a thread the sender is dropped at once, which the receiver notices. Sending fails if nobody waits any longer.
    let _ = thread.spawn(move || sender.send(work()));
    receiver
}

/// The result of `work`, or `None` if it takes longer than `limit`.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    Task::start("headroom-nvml", work).wait(limit).ok()
}
