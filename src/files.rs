//! Names of files, opening without waiting for a writer, and writing where a file's size is limited.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Component, Path};

pub(crate) use candle_headroom_environment::files::{open, text, without_links};

/// Whether a name, joined to a folder, is an entry of that folder.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_name = matches!(parts.next(), Some(Component::Normal(only)) if only == name);
    is_name && parts.next().is_none()
}

/// Writes all bytes. Beyond the limit on the size of files (`ulimit -f`) that is an error, also where Linux would end the process by
/// SIGXFSZ, which it sends to the thread that writes.
pub(crate) fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    let _blocked = size_signal::Blocked::new();
    file.write_all(bytes)
}

#[cfg(target_os = "linux")]
mod size_signal {
    use std::mem::zeroed;
    use std::ptr::null_mut;

    use libc::sigset_t;

    /// SIGXFSZ does not reach this thread while this lives, and what came meanwhile is dropped.
    pub(super) struct Blocked {
        signal: sigset_t,
        before: sigset_t,
    }

    impl Blocked {
        pub(super) fn new() -> Self {
            // SAFETY: sets of signals are integers. The calls write to them, and fail only for signals that do not exist.
            unsafe {
                let (mut signal, mut before): (sigset_t, sigset_t) = (zeroed(), zeroed());
                libc::sigaddset(&mut signal, libc::SIGXFSZ);
                libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before);
                Self { signal, before }
            }
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {
            // SAFETY: the sets are initialized and outlive the calls. A signal that the caller had blocked stays as it was.
            unsafe {
                if libc::sigismember(&self.before, libc::SIGXFSZ) == 0 {
                    libc::sigtimedwait(&self.signal, null_mut(), &zeroed());
                    libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut());
                }
            }
        }
    }
}
