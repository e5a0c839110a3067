//! One test at a time, where tests measure the memory of the process.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use std::{fs, thread};

/// Held by each test that measures or limits host memory, because a process has one limit.
pub struct Alone {
    /// The thread that held it last, as a path below `/proc`.
    last: MutexGuard<'static, Option<PathBuf>>,
}

/// Waits for the test before until its thread has ended, because what is local to a thread is freed after the test. So a
/// test calls this once.
pub fn alone() -> Alone {
    static LAST: Mutex<Option<PathBuf>> = Mutex::new(None);
    let last = LAST.lock();
    let last = last.unwrap_or_else(|poisoned| poisoned.into_inner());
    let is_other = *last != this_thread();
    while is_other && last.as_ref().is_some_and(|thread| thread.exists()) {
        thread::sleep(Duration::from_millis(1));
    }
    Alone { last }
}

impl Drop for Alone {
    fn drop(&mut self) {
        *self.last = this_thread();
    }
}

/// This thread's folder below `/proc`, where there is one.
fn this_thread() -> Option<PathBuf> {
    let link = fs::read_link("/proc/thread-self").ok()?;
    Some(Path::new("/proc").join(link))
}
