use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use half::bf16;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use parking_lot::Mutex;

use crate::distributed::watch::Watch;
use crate::error::{Error, GroupError, Result};

/// Number of polls between two looks at the other ranks.
const POLLS: usize = 64;

/// Held during each call: MPI is initialized for one thread at a time.
static TURN: Mutex<()> = Mutex::new(());

/// MPI, initialized, with a communicator of our own.
pub(super) struct Library {
    pub(super) version: String,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) communicator: ffi::MPI_Comm,
    /// Adds bf16, which MPI sees as 16-bit numbers.
    pub(super) bf16_sum: ffi::MPI_Op,
    /// A request was left behind, or a rank is lost: MPI must not be called again.
    is_lost: AtomicBool,
    /// Finalizes MPI when it is dropped; `None` if the program has initialized it.
    universe: Mutex<Option<Universe>>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Mpi");
        debug
            .field("version", &self.version)
            .field("rank", &self.rank);
        debug.field("size", &self.size).finish_non_exhaustive()
    }
}

// SAFETY: MPI's handles are numbers or addresses that are valid in the whole process. All calls are made under `TURN`, and MPI was initialized for
// calls from several threads, one at a time.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    pub(super) fn start(timeout: Duration) -> Result<Self> {
        let failed = |reason: String| engine_error("MPI", "its initialization", reason);
        let mut finalized: c_int = 0;
        // SAFETY: may be called at any time; the place outlives the call.
        unsafe { ffi::MPI_Finalized(&mut finalized) };
        if finalized != 0 {
            let reason = "it was finalized before, and MPI cannot be initialized twice in a process: keep the group until the end";
            return Err(failed(reason.to_owned()));
        }
        let universe = match mpi::initialize_with_threading(Threading::Serialized) {
            Some((_, provided)) if provided < Threading::Serialized => {
                let reason = format!(
                    "it allows {provided:?} threading, and MPI_THREAD_SERIALIZED is needed"
                );
                return Err(failed(reason));
            }
            Some((universe, _)) => Some(universe),
            None if mpi::environment::threading_support() < Threading::Serialized => {
                let reason = "the program has initialized it for one thread: use `mpi::initialize_with_threading(Threading::Serialized)`";
                return Err(failed(reason.to_owned()));
            }
            None => None,
        };
        // SAFETY: MPI is initialized. Errors of the communicators are returned from here on instead of ending the process.
        let (communicator, rank, size) = unsafe {
            // MPI writes it at the end of the request, or never.
            let mut communicator = Box::new(ffi::RSMPI_COMM_NULL);
            let (mut rank, mut size): (c_int, c_int) = (0, 0);
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN);
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let code = ffi::MPI_Comm_idup(ffi::RSMPI_COMM_WORLD, &mut *communicator, &mut request);
            let done = checked("MPI", "its initialization", code);
            let done = done.and_then(|()| come("MPI", "its initialization", timeout, &mut request));
            if let Err(error) = done {
                mem::forget((communicator, universe));
                return Err(error);
            }
            let communicator = *communicator;
            ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN);
            ffi::MPI_Comm_rank(communicator, &mut rank);
            ffi::MPI_Comm_size(communicator, &mut size);
            (communicator, rank, size)
        };
        // SAFETY: the function is one for this purpose, and MPI is initialized. The order of operands does not matter to it.
        let bf16_sum = unsafe {
            let mut operation = std::mem::zeroed();
            let code = ffi::MPI_Op_create(Some(add_bf16), 1, &mut operation);
            checked("MPI", "its initialization", code)?;
            operation
        };
        let version = mpi::environment::library_version().unwrap_or_default();
        // Such as `Open MPI v4.1.4, package: Debian Open MPI, ident: 4.1.4, …`.
        let version = version.split([',', '\n']).next().unwrap_or_default().trim();
        let positive = |number: c_int| usize::try_from(number).unwrap_or_default();
        Ok(Self {
            version: version.to_owned(),
            rank: positive(rank),
            size: positive(size).max(1),
            communicator,
            bf16_sum,
            is_lost: AtomicBool::new(false),
            universe: Mutex::new(universe),
        })
    }

    /// Starts a request and waits for its end.
    ///
    /// # Safety
    /// The memory that `start` hands to MPI must stay valid until the request is done; after an error, for good.
    pub(super) unsafe fn run(
        &self,
        operation: &'static str,
        watch: &Watch,
        start: impl FnOnce(ffi::MPI_Comm, &mut ffi::MPI_Request) -> c_int,
    ) -> Result<()> {
        let _turn = TURN.lock();
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(engine_error(
                &self.version,
                operation,
                "an earlier call did not end".to_owned(),
            ));
        }
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let done = checked(
            &self.version,
            operation,
            start(self.communicator, &mut request),
        );
        let done = done.and_then(|()| self.wait(operation, watch, &mut request));
        if done.is_err() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        done
    }

    fn wait(
        &self,
        operation: &'static str,
        watch: &Watch,
        request: &mut ffi::MPI_Request,
    ) -> Result<()> {
        let (mut is_done, mut polls): (c_int, usize) = (0, 0);
        loop {
            // SAFETY: the request was started and is not done; a null request counts as done.
            let code = unsafe { ffi::MPI_Test(request, &mut is_done, ffi::RSMPI_STATUS_IGNORE) };
            checked(&self.version, operation, code)?;
            if is_done != 0 {
                return Ok(());
            }
            polls += 1;
            if polls.is_multiple_of(POLLS) {
                watch.check()?;
                // The other ranks may wait for this core.
                thread::yield_now();
            }
        }
    }

    /// Gives all ranks the bytes of each, of which all have equally many.
    pub(super) fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        let _turn = TURN.lock();
        let operation = "an all-gather of addresses";
        let length = c_int::try_from(bytes.len())
            .map_err(|e| engine_error(&self.version, operation, e.to_string()))?;
        let mut all = vec![0; bytes.len() * self.size];
        let bytes = bytes.to_vec();
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: each rank sends `length` bytes, and `all` has room for those of all ranks. Both stay until the request is done, and are forgotten
        // where it is not.
        let code = unsafe {
            let (from, to): (*const c_void, *mut c_void) =
                (bytes.as_ptr().cast(), all.as_mut_ptr().cast());
            let (byte, comm) = (ffi::RSMPI_UINT8_T, self.communicator);
            ffi::MPI_Iallgather(from, length, byte, to, length, byte, comm, &mut request)
        };
        let done = checked(&self.version, operation, code);
        let done = done.and_then(|()| come(&self.version, operation, timeout, &mut request));
        match done {
            Ok(()) => Ok(all),
            Err(error) => {
                mem::forget((bytes, all));
                Err(error)
            }
        }
    }

    /// Never finalizes MPI.
    pub(super) fn abandon(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let universe = self.universe.lock().take();
        if *self.is_lost.get_mut() || thread::panicking() {
            // Finalizing waits for all ranks, of which one may be dead.
            mem::forget(universe);
        }
    }
}

/// Adds bf16 numbers in f32 and rounds the sums to nearest.
///
/// # Safety
/// Both pointers lead to `length` 16-bit numbers, as MPI calls it.
unsafe extern "C" fn add_bf16(
    from: *mut c_void,
    into: *mut c_void,
    length: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    // SAFETY: MPI gives as many elements of the type of the call, and the two do not overlap.
    let (from, into) = unsafe {
        let length = usize::try_from(*length).unwrap_or_default();
        let from = std::slice::from_raw_parts(from.cast::<bf16>(), length);
        (
            from,
            std::slice::from_raw_parts_mut(into.cast::<bf16>(), length),
        )
    };
    for (into, from) in into.iter_mut().zip(from) {
        *into = bf16::from_f32(into.to_f32() + from.to_f32());
    }
}

/// Waits for a request of all ranks, before there are other connections to notice that one is missing.
fn come(
    engine: &str,
    operation: &'static str,
    timeout: Duration,
    request: &mut ffi::MPI_Request,
) -> Result<()> {
    let until = Instant::now() + timeout;
    let mut is_done: c_int = 0;
    loop {
        // SAFETY: the request was started and is not done; a null request counts as done.
        let code = unsafe { ffi::MPI_Test(request, &mut is_done, ffi::RSMPI_STATUS_IGNORE) };
        checked(engine, operation, code)?;
        if is_done != 0 {
            return Ok(());
        }
        if Instant::now() > until {
            let reason =
                format!("not all ranks came within {timeout:?}: do all of them open the group?");
            return Err(engine_error(engine, operation, reason));
        }
        thread::yield_now();
    }
}

fn checked(engine: &str, operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; 1024];
    let mut length: c_int = 0;
    // SAFETY: the text has room for MPI_MAX_ERROR_STRING bytes, which is at most 512 in Open MPI and MPICH.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let text = text
        .get(..usize::try_from(length).unwrap_or_default())
        .unwrap_or_default();
    Err(engine_error(
        engine,
        operation,
        String::from_utf8_lossy(text).into_owned(),
    ))
}

pub(super) fn engine_error(engine: &str, operation: &'static str, reason: String) -> Error {
    GroupError::Engine {
        engine: engine.to_owned(),
        operation,
        reason,
    }
    .into()
}
