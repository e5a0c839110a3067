use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::rehearsal::{Call, LOADER, LoadError};

/// Loads a library and makes the call in a child process, unless this process has loaded the library already. `Ok` also means that the loader
/// refuses the library, which it then does in this process too.
///
/// The child shares nothing that it could damage: it has the parent's memory as a copy and writes its output nowhere. If another thread
/// holds a lock at the moment of the fork that the child needs, the child hangs and is killed.
///
/// # Safety
/// Running the library's initializers and the `call` must be sound.
pub(super) unsafe fn rehearse(path: &Path, call: Call, limit: Duration) -> Result<(), LoadError> {
    if is_loaded(path) {
        return Ok(());
    }
    let started = Instant::now();
    let what = format!("loading and initializing {}", path.display());
    let not_started = |error: io::Error| {
        LoadError::Crashes(format!(
            "{what}: no child process could be started: {error}"
        ))
    };
    let file = CString::new(path.as_os_str().as_bytes()).map_err(|e| not_started(e.into()))?;
    let null = File::options().write(true).open("/dev/null");
    let null = null.map_err(not_started)?;
    let hangs = || LoadError::Hangs(what.clone());
    let lock = LOADER.try_lock_for(limit).ok_or_else(hangs)?;
    // Opened and closed under the lock: another child would keep the writing end open.
    let (mut reader, writer) = io::pipe().map_err(not_started)?;
    // SAFETY: the child does nothing but `play`, which returns to no Rust code.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(not_started(io::Error::last_os_error())),
        // SAFETY: this is the child; the caller vouches for the library and the call.
        0 => unsafe { play(&file, call, writer.as_raw_fd(), null.as_raw_fd()) },
        child => child,
    };
    drop((writer, lock));
    // A thread waits for the child, since one that hangs inside the kernel ends late or never.
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        // Without a byte, the pipe ends when the child does.
        if reader.read_exact(&mut [0]).is_ok() {
            let _ = sender.send(Ok(()));
        }
        let mut status = 0;
        // SAFETY: the call takes the number of a child and a place that outlives it.
        unsafe { libc::waitpid(child, &mut status, 0) };
        let _ = sender.send(Err(ExitStatus::from_raw(status)));
    };
    let waiter = thread::Builder::new().name("headroom-child".to_owned());
    let waiting = waiter.spawn(wait);
    let left = limit.saturating_sub(started.elapsed());
    if let (Ok(_), Ok(outcome)) = (&waiting, receiver.recv_timeout(left)) {
        return outcome
            .map_err(|status| LoadError::Crashes(format!("{what} ends a process ({status})")));
    }
    // SAFETY: the call takes two numbers. If the child ends at this moment, Linux does not use its number again so soon.
    unsafe { libc::kill(child, libc::SIGKILL) };
    Err(waiting.map_or_else(not_started, |_| hangs()))
}

/// Whether the process has loaded this library already, by the list of its mappings. Asking the loader could open a file and hang.
fn is_loaded(path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut mapped = maps
        .lines()
        .filter(|line| line.contains(" r-xp "))
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    if path.components().count() > 1 {
        let file = path.canonicalize();
        return file.is_ok_and(|file| mapped.any(|mapped| mapped == file));
    }
    // `libcuda.so.1` is a link to `libcuda.so.580.95.05`.
    let name = path.to_string_lossy();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    mapped.any(|mapped| {
        let name = mapped.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(stem)
    })
}

/// The child: it writes one byte when it has made the call, or when the loader refuses the library. Memory is allocated by the library
/// alone, since the parent's allocator may have been in use at the fork.
///
/// # Safety
/// The process must be a forked child; running the library's initializers and the `call` must be sound.
unsafe fn play(file: &CStr, call: Call, pipe: RawFd, null: RawFd) -> ! {
    // SAFETY: the arguments are valid for each call; the caller vouches for the library, and `make` gets the function of its name.
    unsafe {
        // The child must not outlive the parent, write to its output or leave a core file.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::dup2(null, libc::STDOUT_FILENO);
        libc::dup2(null, libc::STDERR_FILENO);
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_LAZY);
        if !library.is_null() {
            let function = libc::dlsym(library, call.name.as_ptr());
            if !function.is_null() {
                (call.make)(function);
            }
        }
        libc::write(pipe, [1u8].as_ptr().cast(), 1);
        libc::_exit(0)
    }
}
