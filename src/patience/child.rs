use std::ffi::{CStr, CString, c_int};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use super::library::{Call, LOADER, Trouble};

/// The child writes one of these after each step.
const DONE: u8 = b'.';
/// The child could not load the library.
const FAILED: u8 = b'!';
/// How often the parent looks whether the child has ended without a word.
const TICK: c_int = 20;

/// Whether the process has loaded this library already, by the list of its mappings. Asking the loader could open a file and hang.
pub(super) fn is_loaded(path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut mapped = maps
        .lines()
        .filter(|line| line.contains(" r-xp "))
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    match path.components().count() {
        1 => {
            // `libcuda.so.1` is a link to `libcuda.so.580.95.05`.
            let name = path.to_string_lossy();
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            mapped.any(|file| {
                let file = file.file_name().unwrap_or_default();
                file.to_string_lossy().starts_with(stem)
            })
        }
        _ => path
            .canonicalize()
            .is_ok_and(|path| mapped.any(|file| file == path)),
    }
}

/// Loads a library and makes calls in a child process. `Ok` also means that the loader refuses the library, which it then does in this
/// process too.
///
/// The child shares nothing that it could damage: it has the parent's memory as a copy, writes its output nowhere, and is killed in the
/// end. If another thread holds a lock at the moment of the fork that the child needs, the child hangs and counts as hung.
///
/// # Safety
/// Running the library's initializers and the `calls` must be sound.
pub(super) unsafe fn rehearse(path: &Path, calls: &[Call], limit: Duration) -> Result<(), Trouble> {
    let deadline = Instant::now() + limit.min(Duration::from_secs(24 * 60 * 60));
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| Trouble::NotStarted(error.into()))?;
    let (reader, writer) = io::pipe().map_err(Trouble::NotStarted)?;
    let null = File::options().write(true).open("/dev/null");
    let null = null.map_err(Trouble::NotStarted)?;
    let lock = LOADER.try_lock_for(limit).ok_or(Trouble::Hung(None))?;
    // SAFETY: the child does nothing but `play`, which returns to no Rust code.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(Trouble::NotStarted(io::Error::last_os_error())),
        // SAFETY: this is the child; the caller vouches for the library and the calls.
        0 => unsafe { play(&path, calls, writer.as_raw_fd(), null.as_raw_fd()) },
        child => child,
    };
    drop((lock, writer, null));
    let outcome = watch(child, reader, calls, deadline);
    // If somebody else has waited for the child, its number may be another process's by now.
    if exit_of(child).is_ok() {
        // SAFETY: the call takes two numbers.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    // A child that hangs inside the kernel ends later, or never.
    let reaper = thread::Builder::new().name("headroom-reaper".to_owned());
    // SAFETY: the call takes the number of a child and no place for its status.
    let _ = reaper.spawn(move || unsafe { libc::waitpid(child, null_mut(), 0) });
    outcome
}

/// Follows the child's steps until it has made all, has ended, or the time is over.
fn watch(
    child: libc::pid_t,
    mut reader: io::PipeReader,
    calls: &[Call],
    deadline: Instant,
) -> Result<(), Trouble> {
    let mut steps = 0;
    loop {
        // The first step is loading.
        let current = |steps: usize| steps.checked_sub(1).map(|call| calls[call].name);
        let mut ready = libc::pollfd {
            fd: reader.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which outlives the call.
        unsafe { libc::poll(&mut ready, 1, TICK) };
        if ready.revents & libc::POLLIN != 0 {
            let mut bytes = [0; 16];
            let read = reader.read(&mut bytes).unwrap_or(0);
            let bytes = &bytes[..read];
            steps += bytes.iter().filter(|byte| **byte == DONE).count();
            if bytes.contains(&FAILED) || steps > calls.len() {
                return Ok(());
            }
        } else {
            match exit_of(child) {
                Ok(None) => {}
                Ok(Some(how)) => return Err(Trouble::Crashed(current(steps), how)),
                Err(error) => return Err(Trouble::Crashed(current(steps), error.to_string())),
            }
        }
        if Instant::now() >= deadline {
            return Err(Trouble::Hung(current(steps)));
        }
    }
}

/// How the child ended, if it has. It stays to be waited for.
fn exit_of(child: libc::pid_t) -> io::Result<Option<String>> {
    // SAFETY: all fields may be zero.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the place outlives the call.
    if unsafe { libc::waitid(libc::P_PID, child as libc::id_t, &mut info, options) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `waitid` has filled the fields in, or left them zero.
    let (number, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(match (number, info.si_code) {
        (0, _) => None,
        (_, libc::CLD_EXITED) => Some(format!("exit status {status}")),
        (_, _) => Some(format!("signal {status}")),
    })
}

/// The child. Memory is allocated by the library alone, since the parent's allocator may have been in use at the fork.
///
/// # Safety
/// The process must be a forked child; running the library's initializers and the `calls` must be sound.
unsafe fn play(path: &CStr, calls: &[Call], pipe: RawFd, null: RawFd) -> ! {
    // SAFETY: the arguments are valid for each call; the caller vouches for the library, and each call gets the function of its name.
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
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
        let tell = |byte: u8| libc::write(pipe, (&raw const byte).cast(), 1);
        if library.is_null() {
            tell(FAILED);
            libc::_exit(0);
        }
        tell(DONE);
        for call in calls {
            let function = libc::dlsym(library, call.name.as_ptr());
            if !function.is_null() {
                (call.make)(function);
            }
            tell(DONE);
        }
        libc::_exit(0)
    }
}
