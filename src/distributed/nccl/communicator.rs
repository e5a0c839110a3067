//! NCCL's connections of this rank: opened without blocking, polled in each operation while the other ranks are watched, and aborted at the first
//! error.
//!
//! An abort and the end of a healthy communicator get a few seconds; what takes longer is left behind in its thread.

use std::ffi::c_void;
use std::hint::spin_loop;
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaContext;
use parking_lot::Mutex;

use super::library::{
    Code, Comm, Config, Functions, IN_PROGRESS, Library, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR,
    UniqueId,
};
use crate::distributed::collectives::Watch;
use crate::distributed::control::Control;
use crate::environment::patience::Task;
use crate::error::{Error, Result, engine_failed, failed_before};
use crate::memory::{Handle, drain};

/// Polls without a pause, some microseconds; and the pause between later ones.
const SPINS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(20);
/// Between two looks for a rank that is gone.
const LOOK: Duration = Duration::from_millis(20);
/// How long an abort, or the end of a healthy communicator, may take.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum State {
    /// `ncclComm_t`. NCCL's functions may be called from any thread, and `Communicator` calls them one at a time.
    Live(Handle<c_void>),
    /// Aborted, for this reason.
    Failed(String),
}

/// This rank's end of NCCL's connections. The first error aborts it, and ends the group.
#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) library: Library,
    pub(super) context: Arc<CudaContext>,
    pub(super) control: Arc<Control>,
    state: Mutex<State>,
}

/// A live communicator during one operation.
pub(super) struct Turn<'a> {
    library: &'a Library,
    comm: Comm,
    operation: &'static str,
    watch: &'a Watch,
}

impl Communicator {
    /// Waits for all ranks, which open the communicator of this name.
    pub(super) fn open(
        library: Library,
        context: Arc<CudaContext>,
        id: UniqueId,
        control: &Arc<Control>,
        watch: &Watch,
    ) -> Result<Self> {
        let operation = "its initialization";
        // Some versions write it later, from a thread of theirs, so its place stays for good: 8 bytes.
        let comm: &'static mut Comm = Box::leak(Box::new(null_mut()));
        let (size, rank) = (control.size() as i32, control.rank() as i32);
        let mut config = Config::NON_BLOCKING;
        let bound = bind(&context);
        let begun = bound.map(|()| {
            // SAFETY: the places outlive the call, the device of the context is current, and the rank is below the number of ranks.
            unsafe { (library.functions.init)(comm, size, id, rank, &mut config) }
        });
        let communicator = Self {
            library,
            context,
            control: control.clone(),
            state: Mutex::new(State::Live(Handle(*comm))),
        };
        communicator.run(operation, watch, |turn| turn.accepted(begun?))?;
        Ok(communicator)
    }

    /// Does a part of the ranks' common work. After an error the communicator is aborted, and the group has ended.
    pub(super) fn run(
        &self,
        operation: &'static str,
        watch: &Watch,
        work: impl FnOnce(&Turn) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let handle = match &*state {
            State::Live(handle) => *handle,
            State::Failed(reason) => return Err(failed_before(reason)),
        };
        let turn = Turn {
            library: &self.library,
            comm: handle.0,
            operation,
            watch,
        };
        let done = bind(&self.context).and_then(|()| work(&turn));
        done.inspect_err(|error| {
            let reason = error.to_string();
            // Before the abort, which may take its time.
            self.control.fail(&reason);
            *state = State::Failed(reason);
            self.abort(handle);
        })
    }

    /// Ends NCCL's work on the device. Called once, since the state is not `Live` afterwards.
    fn abort(&self, handle: Handle<c_void>) {
        if handle.0.is_null() {
            return;
        }
        let (abort, context) = (self.library.functions.abort, self.context.clone());
        let aborting = Task::start("headroom-nccl", move || {
            let handle = handle;
            let _ = bind(&context);
            // SAFETY: the communicator is live, and no other call on it follows. The library stays loaded.
            unsafe { abort(handle.0) }
        });
        if aborting.wait(LIMIT).is_err() {
            tracing::warn!(
                "NCCL did not return from an abort within {LIMIT:?}: its threads and device memory are left behind"
            );
        }
    }

    /// Frees a communicator that all ranks have finished with; false if they have not.
    fn close(&self, Handle(comm): Handle<c_void>) -> bool {
        let functions = &self.library.functions;
        let until = Instant::now() + LIMIT;
        // SAFETY: the communicator is live.
        let code = unsafe { (functions.finalize)(comm) };
        if bind(&self.context).is_err() || !matches!(code, SUCCESS | IN_PROGRESS) {
            return false;
        }
        loop {
            match async_error(functions, comm) {
                Some(IN_PROGRESS) if Instant::now() <= until => thread::sleep(PAUSE),
                Some(SUCCESS) => break,
                _ => return false,
            }
        }
        // SAFETY: the communicator is live and finalized, and no call on it follows.
        unsafe { (functions.destroy)(comm) };
        true
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let State::Live(handle) = *self.state.get_mut() else {
            return;
        };
        if thread::panicking() || !self.close(handle) {
            self.abort(handle);
        }
    }
}

impl Turn<'_> {
    /// Makes a call, and waits until NCCL has queued its work.
    ///
    /// # Safety
    /// The call must be sound with a live communicator.
    pub(super) unsafe fn call(&self, call: impl FnOnce(&Functions, Comm) -> Code) -> Result<()> {
        self.accepted(call(&self.library.functions, self.comm))
    }

    /// Waits until what a call has begun is queued.
    fn accepted(&self, code: Code) -> Result<()> {
        match code {
            SUCCESS | IN_PROGRESS if !self.comm.is_null() => {
                self.until(|turn| Ok(turn.check()? == SUCCESS))
            }
            code => Err(self.failed(code)),
        }
    }

    /// Waits until the device has done what was queued, which `is_done` asks.
    pub(super) fn wait(&self, mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
        self.until(|turn| {
            let is_done = is_done()?;
            turn.check()?;
            Ok(is_done)
        })
    }

    fn until(&self, mut is_done: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let mut polls = 0;
        while !is_done(self)? {
            self.watch.check()?;
            match polls < SPINS {
                true => spin_loop(),
                false => thread::sleep(PAUSE),
            }
            polls += 1;
        }
        Ok(())
    }

    /// The communicator's state, if it is not an error.
    fn check(&self) -> Result<Code> {
        match async_error(&self.library.functions, self.comm) {
            Some(code @ (SUCCESS | IN_PROGRESS)) => Ok(code),
            Some(code) => Err(self.failed(code)),
            None => Err(self.error("it does not know its communicator".to_owned())),
        }
    }

    fn failed(&self, code: Code) -> Error {
        // A rank that is gone, which may be known a moment later, says more than the connection to it.
        let looks = match code {
            SYSTEM_ERROR | REMOTE_ERROR => 25,
            _ => 1,
        };
        for _ in 0..looks {
            if let Err(lost) = self.watch.check() {
                return lost;
            }
            thread::sleep(LOOK);
        }
        self.error(self.library.describe(code, self.comm))
    }

    /// An error of the engine.
    pub(super) fn error(&self, reason: String) -> Error {
        engine_failed(&self.library.name(), self.operation, &reason)
    }
}

fn async_error(functions: &Functions, comm: Comm) -> Option<Code> {
    let mut error = SUCCESS;
    // SAFETY: the communicator is live, and the place outlives the call.
    let code = unsafe { (functions.async_error)(comm, &mut error) };
    (code == SUCCESS).then_some(error)
}

/// Makes the device current in this thread, for NCCL.
fn bind(context: &Arc<CudaContext>) -> Result<()> {
    // cudarc would return an error that an earlier drop has stored.
    drain(context)?;
    Ok(context.bind_to_thread().w()?)
}
