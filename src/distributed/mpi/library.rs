//! MPI's calls, one at a time, each with an end.
//!
//! `MPI_Init` may never return, so it runs in a thread, which also finalizes MPI, as the standard asks for. Operations are those that do not block:
//! each is polled while the other ranks are watched. After one that did not end MPI is not called again, and the memory that it may still read or
//! write is never freed.

use std::ffi::{c_int, c_void};
#[cfg(target_os = "linux")]
use std::os::unix::net::UnixListener as Presence;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, mem};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use parking_lot::Mutex;

use crate::distributed::control::{Control, Deadline};
use crate::distributed::launch::Launch;
use crate::error::{self, Error, Result, engine_failed};

/// The time between two looks at the thread that initializes MPI.
const PAUSE: Duration = Duration::from_millis(20);
const INITIALIZATION: &str = "its initialization";
/// How long a rank that gives up shows that it has come.
const LINGER: Duration = Duration::from_secs(1);
/// Number of polls between two looks at the other ranks.
const POLLS: usize = 64;

/// Held during each call of a function that needs MPI's initialization: it is initialized for one thread at a time.
static TURN: Mutex<()> = Mutex::new(());
/// This crate has initialized MPI, which is possible once in a process.
static WAS_INITIALIZED: AtomicBool = AtomicBool::new(false);

/// MPI, initialized, with a communicator of our own.
#[derive(Debug)]
pub(in crate::distributed) struct Mpi {
    pub(super) version: String,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) communicator: ffi::MPI_Comm,
    /// A request was left behind: MPI must not be called again.
    is_lost: AtomicBool,
    /// A rank is lost, for which MPI's own end would wait. Groups that do not need that rank go on.
    never_ends: AtomicBool,
    /// How many groups use it, and those that have ended.
    groups: Mutex<(usize, Vec<Arc<Control>>)>,
    _presence: Option<Presence>,
    /// Asks for the end of MPI. Without that, MPI is left as it is.
    end: Sender<()>,
    /// The one that has initialized MPI, since the same one has to finalize it. `None` after its end.
    thread: Option<JoinHandle<()>>,
}

// SAFETY: MPI's handles are numbers or addresses that are valid in the whole process. MPI was initialized for calls from several threads, one at a
// time, and all that this crate makes while an `Mpi` lives are made under `TURN`; the program has to serialize its own with them.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

impl Mpi {
    /// Initializes MPI in a thread, which is left behind if `MPI_Init` does not return in time.
    pub(super) fn initialize(launch: &Launch, deadline: &mut Deadline) -> Result<Self> {
        let presence = show(launch);
        let (send, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = thread::Builder::new().name("headroom-mpi".to_owned());
        let thread = thread.spawn(move || {
            let turn = TURN.lock();
            let universe = initialize();
            drop(turn);
            match universe {
                Ok(universe) => {
                    let is_awaited = send.send(Ok(())).is_ok();
                    // Finalizing waits for all ranks, of which one may be lost.
                    if is_awaited && ended.recv().is_ok() {
                        let _turn = TURN.lock();
                        drop(universe);
                    } else {
                        mem::forget(universe);
                    }
                }
                Err(error) => drop(send.send(Err(error))),
            }
        });
        let thread = thread.map_err(|error| failed(format!("no thread: {error}")))?;
        loop {
            match begun.recv_timeout(PAUSE) {
                Ok(done) => break done?,
                Err(RecvTimeoutError::Timeout) => in_time(launch, deadline)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("it panicked".to_owned()));
                }
            }
        }
        let turn = TURN.lock();
        let communicator = duplicate(launch, deadline)?;
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: MPI is initialized, the communicator is live, and the places outlive the calls.
        unsafe {
            ffi::MPI_Comm_rank(communicator, &mut rank);
            ffi::MPI_Comm_size(communicator, &mut size);
        }
        let version = mpi::environment::library_version().unwrap_or_default();
        drop(turn);
        // Such as `Open MPI v4.1.4, package: Debian Open MPI, ident: 4.1.4, …`.
        let version = version.split([',', '\n']).next().unwrap_or_default().trim();
        let positive = |number: c_int| usize::try_from(number).unwrap_or_default();
        Ok(Self {
            version: version.to_owned(),
            rank: positive(rank),
            size: positive(size).max(1),
            communicator,
            is_lost: AtomicBool::new(false),
            never_ends: AtomicBool::new(false),
            groups: Mutex::default(),
            _presence: presence,
            end,
            thread: Some(thread),
        })
    }

    /// Starts a request and waits for its end, unless `look` finds that there will be none.
    ///
    /// # Safety
    /// The memory that `start` hands to MPI must stay valid until the request is done; after an error, for good.
    pub(super) unsafe fn run(
        &self,
        operation: &'static str,
        look: impl FnMut() -> Result<()>,
        start: impl FnOnce(ffi::MPI_Comm, &mut ffi::MPI_Request) -> c_int,
    ) -> Result<()> {
        let _turn = TURN.lock();
        if self.is_lost.load(Ordering::Relaxed) {
            let reason = "an earlier call did not end".to_owned();
            return Err(engine_failed(&self.version, operation, &reason));
        }
        let start = |request: &mut _| start(self.communicator, request);
        let done = finish(&self.version, operation, look, start);
        if done.is_err() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Gives all ranks the bytes of each, of which all have equally many.
    pub(super) fn all_gather(
        &self,
        bytes: &[u8],
        launch: &Launch,
        deadline: &mut Deadline,
    ) -> Result<Vec<u8>> {
        let operation = "an all-gather of addresses";
        let length = c_int::try_from(bytes.len())
            .map_err(|e| engine_failed(&self.version, operation, &e))?;
        let mut all = vec![0; bytes.len() * self.size];
        let bytes = bytes.to_vec();
        let (from, to): (*const c_void, *mut c_void) =
            (bytes.as_ptr().cast(), all.as_mut_ptr().cast());
        // There are no other connections yet to notice that a rank is missing.
        let look = || in_time(launch, deadline);
        // SAFETY: each rank sends `length` bytes, and `all` has room for those of all ranks. Both stay until the request is done, and are forgotten
        // where it is not.
        let done = unsafe {
            self.run(operation, look, |comm, request| {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Iallgather(from, length, byte, to, length, byte, comm, request)
            })
        };
        match done {
            Ok(()) => Ok(all),
            Err(error) => {
                mem::forget((bytes, all));
                Err(error)
            }
        }
    }

    pub(super) fn begin_group(&self) {
        self.groups.lock().0 += 1;
    }

    /// A group has left, and uses MPI no more. After the last one MPI is finalized, which would not notice a rank that is lost meanwhile: so this
    /// waits for all ranks to leave all groups, and abandons MPI if one of these has ended otherwise.
    pub(in crate::distributed) fn end_group(&self, control: &Arc<Control>) {
        let mut groups = self.groups.lock();
        groups.0 = groups.0.saturating_sub(1);
        groups.1.push(Arc::clone(control));
        let is_last = groups.0 == 0 && !thread::panicking();
        for control in &groups.1 {
            if is_last {
                control.wait_for_others();
            }
            if control.has_ended() {
                self.abandon();
            }
        }
        if is_last {
            groups.1.clear();
        }
    }

    /// Leaves MPI as it is when the process ends, because a rank is lost, and MPI's own end waits for all ranks.
    pub(in crate::distributed) fn abandon(&self) {
        self.never_ends.store(true, Ordering::Relaxed);
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // Finalizing waits for all ranks, of which one may be dead.
        if *self.is_lost.get_mut() || *self.never_ends.get_mut() || thread::panicking() {
            return;
        }
        if let Some(thread) = self.thread.take()
            && self.end.send(()).is_ok()
        {
            let _ = thread.join();
        }
    }
}

/// Initializes MPI. Returns what finalizes it when it is dropped, or `None` if the program has initialized it.
fn initialize() -> Result<Option<Universe>> {
    if mpi::environment::is_finalized() || WAS_INITIALIZED.load(Ordering::Relaxed) {
        let reason = "it was initialized before, and an MPI that has ended or has lost a rank cannot be initialized again in a process: keep the group until the end";
        return Err(failed(reason.to_owned()));
    }
    match mpi::initialize_with_threading(Threading::Serialized) {
        Some((_, provided)) if provided < Threading::Serialized => {
            let reason =
                format!("it allows {provided:?} threading, and MPI_THREAD_SERIALIZED is needed");
            Err(failed(reason))
        }
        Some((universe, _)) => {
            WAS_INITIALIZED.store(true, Ordering::Relaxed);
            Ok(Some(universe))
        }
        None if mpi::environment::threading_support() < Threading::Serialized => {
            let reason = "the program has initialized it for one thread: use `mpi::initialize_with_threading(Threading::Serialized)`";
            Err(failed(reason.to_owned()))
        }
        None => Ok(None),
    }
}

/// Makes a communicator of our own, whose errors are returned. Those of the program's end the process as before.
fn duplicate(launch: &Launch, deadline: &mut Deadline) -> Result<ffi::MPI_Comm> {
    // SAFETY: MPI is initialized, and the places outlive the calls; MPI writes the communicator at the end of the request, so its place stays for
    // good if that does not come. The handler of errors is the program's own again afterwards.
    unsafe {
        let mut communicator = Box::new(ffi::RSMPI_COMM_NULL);
        let mut handler = mem::zeroed();
        ffi::MPI_Comm_get_errhandler(ffi::RSMPI_COMM_WORLD, &mut handler);
        ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN);
        let place: *mut ffi::MPI_Comm = &mut *communicator;
        let look = || in_time(launch, deadline);
        let done = finish("MPI", INITIALIZATION, look, |request| {
            ffi::MPI_Comm_idup(ffi::RSMPI_COMM_WORLD, place, request)
        });
        ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, handler);
        ffi::MPI_Errhandler_free(&mut handler);
        if let Err(error) = done {
            mem::forget(communicator);
            return Err(error);
        }
        ffi::MPI_Comm_set_errhandler(*communicator, ffi::RSMPI_ERRORS_RETURN);
        Ok(*communicator)
    }
}

/// Starts a request and waits for its end, unless `look` finds that there will be none.
fn finish(
    engine: &str,
    operation: &'static str,
    mut look: impl FnMut() -> Result<()>,
    start: impl FnOnce(&mut ffi::MPI_Request) -> c_int,
) -> Result<()> {
    // SAFETY: a constant of the library.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    checked(engine, operation, start(&mut request))?;
    let (mut is_done, mut polls): (c_int, usize) = (0, 0);
    loop {
        // SAFETY: the request was started and is not done; a null request counts as done.
        let code = unsafe { ffi::MPI_Test(&mut request, &mut is_done, ffi::RSMPI_STATUS_IGNORE) };
        checked(engine, operation, code)?;
        if is_done != 0 {
            return Ok(());
        }
        polls += 1;
        if polls.is_multiple_of(POLLS) {
            look()?;
            // The other ranks may wait for this core.
            thread::yield_now();
        }
    }
}

/// Fails if the time is over, with the ranks that are missing.
fn in_time(launch: &Launch, deadline: &mut Deadline) -> Result<()> {
    match deadline.left(Duration::ZERO) {
        Some(_) => Ok(()),
        None => {
            let error = missing(launch, deadline.timeout());
            // Others give up a little later, and this rank is not one that they miss.
            thread::sleep(LINGER.min(deadline.timeout()));
            Err(error)
        }
    }
}

/// The name of the socket by which a rank shows that it has come, if the launcher says which job it belongs to.
fn socket(launch: &Launch, rank: usize) -> Option<String> {
    let job = launch.mpi_job.as_ref()?;
    Some(format!("candle-headroom/{job}/{rank}"))
}

/// Shows the other ranks of this machine that this one has come to `MPI_Init`, where ranks cannot ask each other anything.
///
/// It is a socket with a name, at which nobody connects: the system removes it with the process, however that ends.
#[cfg(target_os = "linux")]
fn show(launch: &Launch) -> Option<Presence> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    let address = SocketAddr::from_abstract_name(socket(launch, launch.rank)?).ok()?;
    Presence::bind_addr(&address).ok()
}

#[cfg(not(target_os = "linux"))]
type Presence = ();

#[cfg(not(target_os = "linux"))]
fn show(_: &Launch) -> Option<Presence> {
    None
}

/// Who is missing where ranks have waited for this long in MPI's initialization.
fn missing(launch: &Launch, waited: Duration) -> Error {
    let size = launch.size;
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_here = |rank: &usize| {
        let end = socket(launch, *rank).map(|name| format!(" @{name}"));
        end.is_some_and(|end| sockets.lines().any(|line| line.ends_with(&end)))
    };
    let (here, ranks): (Vec<_>, Vec<_>) = (0..size).partition(is_here);
    if launch.local_size == Some(size) && !ranks.is_empty() && !here.is_empty() {
        return error::missing(&ranks, size, waited);
    }
    let local = launch.local_size.map(|size| format!(" of {size}"));
    failed(format!(
        "it did not end within {waited:?}: a rank was not started, died, or has not opened the group. Of {size} ranks, {here:?} have come on this \
         machine, which has {}{}. End this process: its thread in `MPI_Init` cannot be ended alone",
        here.len(),
        local.unwrap_or_default()
    ))
}

fn checked(engine: &str, operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length: c_int = 0;
    // SAFETY: MPI is initialized, and the text has room for the longest that this MPI writes, and a zero.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let text = text
        .get(..usize::try_from(length).unwrap_or_default())
        .unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    Err(engine_failed(engine, operation, &text))
}

fn failed(reason: String) -> Error {
    engine_failed("MPI", INITIALIZATION, &reason)
}
