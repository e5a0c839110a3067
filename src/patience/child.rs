use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, PipeReader};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use super::call::{Call, LOADER, LoadError};

/// The time between two looks at a child.
const PAUSE: Duration = Duration::from_millis(2);

/// Loads a library and makes the call in a child process, unless this process has loaded the library already. `Ok` also means that the
/// loader refuses the library, which it then does in this process too.
///
/// The child has a copy of the memory and writes its output nowhere. If it needs a lock that another thread held at the fork, it is killed.
///
/// # Safety
/// Running the library's initializers and the `call` must be sound.
pub(super) unsafe fn rehearse(path: &Path, call: Call, limit: Duration) -> Result<(), LoadError> {
    if is_loaded(path) {
        return Ok(());
    }
    let started = Instant::now();
    let what = format!("loading and initializing {}", path.display());
    let not_started = |e: io::Error| LoadError::Crashes(format!("{what}: no child process: {e}"));
    let file = CString::new(path.as_os_str().as_bytes()).map_err(|e| not_started(e.into()))?;
    let null = File::options().write(true).open("/dev/null");
    let null = null.map_err(not_started)?;
    let hangs = || LoadError::Hangs(what.clone());
    let lock = LOADER.try_lock_for(limit).ok_or_else(hangs)?;
    // Opened and closed under the lock: another child would keep the writing end open.
    let (reader, writer) = io::pipe().map_err(not_started)?;
    // SAFETY: the child does nothing but `play`, which returns to no Rust code.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(not_started(io::Error::last_os_error())),
        // SAFETY: this is the child; the caller vouches for the library and the call.
        0 => unsafe { play(&file, call, writer.as_raw_fd(), null.as_raw_fd()) },
        child => child,
    };
    drop((writer, lock));
    loop {
        // The end is looked for first, so that a byte that was written at the last moment counts.
        let end = end_of(child);
        let outcome = match &end {
            _ if has_byte(&reader) => Ok(()),
            Some(end) => Err(LoadError::Crashes(format!("{what} ends a process ({end})"))),
            None if started.elapsed() < limit => {
                thread::sleep(PAUSE);
                continue;
            }
            None => {
                // SAFETY: the call takes two numbers. A program that ignores SIGCHLD or waits for all children may have taken its end since
                // `end_of`, but Linux gives out all other numbers before it gives this one again.
                unsafe { libc::kill(child, libc::SIGKILL) };
                Err(hangs())
            }
        };
        if end.is_none() {
            // In a thread, since a child that hangs inside the kernel ends late or never. Without one it stays a zombie.
            let reaper = thread::Builder::new().name("headroom-child".to_owned());
            // SAFETY: the call takes numbers; without a place it tells nothing of the end.
            let _ = reaper.spawn(move || unsafe { libc::waitpid(child, null_mut(), 0) });
        }
        return outcome;
    }
}

/// How the child has ended; `None` while it runs. It must not be asked for again after its end.
fn end_of(child: libc::pid_t) -> Option<String> {
    let mut status = 0;
    // SAFETY: the call takes numbers and a place that outlives it.
    match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
        0 => None,
        // The system does not keep the status for a process that ignores SIGCHLD.
        -1 => Some("its status is unknown".to_owned()),
        _ => Some(ExitStatus::from_raw(status).to_string()),
    }
}

/// Whether the pipe holds a byte. Its end says nothing: a process that the library has started may keep it open.
fn has_byte(pipe: &PipeReader) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes a number, whose place outlives it.
    unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut bytes) == 0 && bytes > 0 }
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

/// Writes one byte when the call is made or the loader refuses the library. Allocates nothing: the allocator may have been in use at the fork.
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
        libc::setrlimit(libc::RLIMIT_CORE, &zeroed());
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
