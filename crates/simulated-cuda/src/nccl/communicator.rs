//! Communicators, by handle.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::collective::Call;
use super::exchange::Exchange;
use super::fault::Fault;
use super::{Code, NcclResult};
use crate::driver::device_query::uuid;
use crate::simulator;

/// Bytes of device memory that a communicator takes, in place of its buffers.
pub const COMMUNICATOR_BYTES: u64 = 8 << 20;
/// How many times [`super::entry::ncclCommGetAsyncError`] reports that an accepted call is in progress.
const POLLS: u32 = 3;
const PAUSE: Duration = Duration::from_micros(100);

/// A handle, which is no address, so that dereferencing it crashes.
pub type Handle = u64;
const FIRST: Handle = 0x6e63_0000_0000_0001;

static LIVE: Mutex<BTreeMap<Handle, Arc<Communicator>>> = Mutex::new(BTreeMap::new());
/// Calls by what they did; see [`super::entry::simulated_nccl_count`].
pub static ABORTS: AtomicU64 = AtomicU64::new(0);
pub static DESTROYS: AtomicU64 = AtomicU64::new(0);
pub static MISUSES: AtomicU64 = AtomicU64::new(0);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct State {
    /// Whether all ranks have joined.
    is_ready: bool,
    /// An accepted call, and for how many more polls it is in progress.
    accepted: Option<(Call, u32)>,
    calls: u64,
    error: Option<Code>,
    text: String,
}

/// One rank's end.
#[derive(Debug)]
pub struct Communicator {
    pub rank: usize,
    pub size: usize,
    pub fault: Option<Fault>,
    pub exchange: Exchange,
    device: usize,
    is_over: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    state: Mutex<State>,
}

/// The communicator of a handle that a program has received and not given back.
pub fn find(handle: Handle) -> NcclResult<Arc<Communicator>> {
    let found = locked(&LIVE).get(&handle).cloned();
    found.ok_or_else(|| {
        MISUSES.fetch_add(1, Ordering::SeqCst);
        Code::INVALID_ARGUMENT
    })
}

/// Takes a handle back.
pub fn remove(handle: Handle) -> NcclResult<Arc<Communicator>> {
    let found = find(handle)?;
    locked(&LIVE).remove(&handle);
    Ok(found)
}

pub fn live() -> u64 {
    locked(&LIVE).len() as u64
}

impl Communicator {
    /// Begins to join the other ranks.
    pub fn begin(folder: &Path, rank: usize, size: usize, device: usize) -> Handle {
        static LAST: AtomicU64 = AtomicU64::new(FIRST);
        let communicator = Arc::new(Communicator {
            rank,
            size,
            fault: Fault::ordered(),
            exchange: Exchange::new(folder, rank, size),
            device,
            is_over: AtomicBool::new(false),
            thread: Mutex::default(),
            state: Mutex::default(),
        });
        let handle = LAST.fetch_add(1, Ordering::SeqCst);
        locked(&LIVE).insert(handle, communicator.clone());
        let own = communicator.clone();
        *locked(&communicator.thread) = Some(thread::spawn(move || own.work()));
        handle
    }

    /// What NCCL's threads and the device do by themselves.
    fn work(&self) {
        if self.fault == Some(Fault::InitLate) {
            return self.fail(Code::SYSTEM_ERROR, "no route to another rank");
        }
        let taken = simulator::lock_as_it_is(self.device)
            .is_some_and(|mut device| device.memory.take_overhead(COMMUNICATOR_BYTES).is_ok());
        if !taken {
            return self.fail(Code::CUDA_ERROR, "Cuda failure 2 'out of memory'");
        }
        if self.exchange.give("init", &[&uuid(self.device)]).is_err() {
            self.give_back();
            return self.fail(Code::SYSTEM_ERROR, "the communicator does not exist");
        }
        let is_waiting =
            || !self.exchange.is_complete("init") || self.fault == Some(Fault::InitHang);
        while is_waiting() && !self.is_aborted() {
            thread::sleep(PAUSE);
        }
        if self.is_aborted() {
            return self.give_back();
        }
        let mut devices = vec![[0; 16]; self.size];
        for (rank, device) in devices.iter_mut().enumerate() {
            let taken = self.exchange.take("init", rank, 0, device);
            taken.expect("what a rank has given can be read");
        }
        devices.sort_unstable();
        if devices.windows(2).any(|pair| pair[0] == pair[1]) {
            self.fail(
                Code::INVALID_USAGE,
                "Duplicate GPU detected: two ranks on one device",
            );
        }
        locked(&self.state).is_ready = true;
        while !self.is_over.load(Ordering::SeqCst) {
            if let Some(mut device) = simulator::lock_as_it_is(self.device) {
                device.advance_collectives();
            }
            thread::sleep(PAUSE);
        }
        self.give_back();
    }

    fn give_back(&self) {
        if let Some(mut device) = simulator::lock_as_it_is(self.device) {
            device.memory.overhead -= COMMUNICATOR_BYTES;
        }
    }

    /// Reports an error from now on.
    pub fn fail(&self, code: Code, text: &str) {
        let mut state = locked(&self.state);
        state.error = Some(code);
        text.clone_into(&mut state.text);
    }

    pub fn last_error(&self) -> String {
        locked(&self.state).text.clone()
    }

    pub fn is_aborted(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// What `ncclCommGetAsyncError` reports.
    pub fn progress(&self) -> NcclResult {
        let mut state = locked(&self.state);
        if let Some(code) = state.error {
            return Err(code);
        }
        if !state.is_ready {
            return Err(Code::IN_PROGRESS);
        }
        match state.accepted.take() {
            None => Ok(()),
            Some((call, polls)) if polls > 0 => {
                state.accepted = Some((call, polls - 1));
                Err(Code::IN_PROGRESS)
            }
            Some((mut call, _)) => {
                // The device may be executing a collective that reports an error here.
                drop(state);
                let mut device = simulator::lock_as_it_is(self.device).ok_or(Code::CUDA_ERROR)?;
                call.queue(&mut device);
                device.collect(move |device| call.advance(device));
                Ok(())
            }
        }
    }

    /// Accepts a call.
    pub fn accept(&self, mut call: Call) -> NcclResult {
        let mut state = locked(&self.state);
        if let Some(code) = state.error {
            return Err(code);
        }
        if !state.is_ready || state.accepted.is_some() {
            state.text = "the operation before is still in progress".to_owned();
            MISUSES.fetch_add(1, Ordering::SeqCst);
            return Err(Code::INVALID_ARGUMENT);
        }
        state.calls += 1;
        call.number = state.calls;
        match self.fault {
            Some(Fault::Call(nth)) if nth == state.calls => {
                state.text = "a call that a test lets fail".to_owned();
                return Err(Code::INTERNAL_ERROR);
            }
            // SAFETY: the call takes numbers.
            Some(Fault::Die(nth)) if nth == state.calls => unsafe {
                libc::kill(libc::getpid(), libc::SIGKILL);
            },
            _ => {}
        }
        state.accepted = Some((call, POLLS));
        Ok(())
    }

    /// Ends it: collectives that wait are given up.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let thread = locked(&self.thread).take();
        let _ = thread.map(JoinHandle::join);
        // Without work that still refers to this communicator when its handle is gone.
        if let Some(mut device) = simulator::lock_as_it_is(self.device) {
            device.advance_collectives();
        }
        self.exchange.leave();
    }
}
