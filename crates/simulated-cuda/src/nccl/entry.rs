//! The entry points, and a counter for tests.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::collective::{Call, Kind};
use super::communicator::{ABORTS, Communicator, DESTROYS, Handle, MISUSES, find, live, remove};
use super::exchange::new_folder;
use super::fault::Fault;
use super::{Code, NcclResult, answer};
use crate::driver::current::{on_stream, sound_device};
use crate::status::{Status, not_modelled, store};

/// The version of the stand-in: NCCL 2.27.3.
const VERSION: i32 = 22703;
const MAGIC: u32 = 0xcafe_beef;

/// `ncclUniqueId`: the path of the communicator's folder, with a final zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UniqueId([u8; 128]);

/// The beginning of `ncclConfig_t`, as far as version 2.14 had it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

fn invalid(_: Status) -> Code {
    Code::INVALID_ARGUMENT
}

/// The library's version, or the one in `SIMULATED_NCCL_VERSION`, as 10000 × major + 100 × minor + patch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut i32) -> u32 {
    // SAFETY: the name is a C string. Rust's own function takes a lock, which a forked process could wait for in vain.
    let chosen = unsafe { libc::getenv(c"SIMULATED_NCCL_VERSION".as_ptr()) };
    let value = match chosen.is_null() {
        true => VERSION,
        // SAFETY: a C string of the environment.
        false => unsafe { libc::atoi(chosen) },
    };
    // SAFETY: the caller passes a place for one number.
    answer(|| unsafe { store(version, value) }.map_err(invalid))
}

/// Makes the name of a new communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> u32 {
    answer(|| {
        let folder = new_folder().map_err(|_| Code::SYSTEM_ERROR)?;
        let path = folder.to_str().ok_or(Code::SYSTEM_ERROR)?.as_bytes();
        let mut bytes = [0; 128];
        let place = bytes.get_mut(..path.len()).ok_or(Code::SYSTEM_ERROR)?;
        place.copy_from_slice(path);
        // SAFETY: the caller passes a place for one name.
        unsafe { store(id, UniqueId(bytes)) }.map_err(invalid)
    })
}

/// Begins to create a non-blocking communicator on the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    communicator: *mut Handle,
    size: i32,
    id: UniqueId,
    rank: i32,
    config: *const Config,
) -> u32 {
    answer(|| {
        // SAFETY: null, or the caller's configuration.
        let config = unsafe { config.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
        let is_known = config.magic == MAGIC && config.size >= size_of::<Config>();
        if !is_known || size < 1 || !(0..size).contains(&rank) || communicator.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if config.blocking != 0 || config.version < 21400 {
            not_modelled("a blocking communicator");
        }
        if Fault::ordered() == Some(Fault::Init) {
            return Err(Code::SYSTEM_ERROR);
        }
        let device = sound_device().map_err(|_| Code::CUDA_ERROR)?.ordinal;
        let path = CStr::from_bytes_until_nul(&id.0).map_err(|_| Code::INVALID_ARGUMENT)?;
        let path = path.to_str().map_err(|_| Code::INVALID_ARGUMENT)?;
        let begun = Communicator::begin(Path::new(path), rank as usize, size as usize, device);
        // SAFETY: not null; the caller passes a place for one handle.
        unsafe { store(communicator, begun) }.map_err(invalid)?;
        Err(Code::IN_PROGRESS)
    })
}

/// What has become of the calls so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(communicator: Handle, error: *mut u32) -> u32 {
    answer(|| {
        let state = find(communicator)?.progress();
        let code = state.err().map_or(0, |Code(code)| code);
        // SAFETY: the caller passes a place for one number.
        unsafe { store(error, code) }.map_err(invalid)
    })
}

/// Waits for the calls so far, which here their order on the stream does.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(communicator: Handle) -> u32 {
    answer(|| find(communicator).map(drop))
}

/// Frees a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(communicator: Handle) -> u32 {
    answer(|| {
        let communicator = remove(communicator)?;
        DESTROYS.fetch_add(1, Ordering::SeqCst);
        communicator.end();
        Ok(())
    })
}

/// Ends the calls that wait for other ranks, and frees a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(communicator: Handle) -> u32 {
    answer(|| {
        let communicator = remove(communicator)?;
        ABORTS.fetch_add(1, Ordering::SeqCst);
        if let Some(Fault::AbortHang(_)) = communicator.fault {
            thread::sleep(Duration::MAX);
        }
        communicator.end();
        Ok(())
    })
}

/// Sums the ranks' buffers, and gives each rank its piece.
#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    send: u64,
    receive: u64,
    count: usize,
    data_type: u32,
    operation: u32,
    communicator: Handle,
    stream: u64,
) -> u32 {
    if operation != 0 {
        not_modelled("an operation of ncclReduceScatter other than the sum");
    }
    let places = (send, receive);
    answer(|| {
        let own = find(communicator)?;
        call(&own, Kind::ReduceScatter, places, count, data_type, stream)
    })
}

/// Gives all ranks the pieces of each.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    send: u64,
    receive: u64,
    count: usize,
    data_type: u32,
    communicator: Handle,
    stream: u64,
) -> u32 {
    answer(|| {
        let own = find(communicator)?;
        let places = (send, receive);
        call(&own, Kind::AllGather, places, count, data_type, stream)
    })
}

/// Gives all ranks the buffer of one.
#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    send: u64,
    receive: u64,
    count: usize,
    data_type: u32,
    root: i32,
    communicator: Handle,
    stream: u64,
) -> u32 {
    answer(|| {
        let own = find(communicator)?;
        let root = usize::try_from(root).ok().filter(|root| *root < own.size);
        let root = root.ok_or(Code::INVALID_ARGUMENT)?;
        let kind = Kind::Broadcast { root };
        call(&own, kind, (send, receive), count, data_type, stream)
    })
}

fn call(
    communicator: &Arc<Communicator>,
    kind: Kind,
    places: (u64, u64),
    count: usize,
    data_type: u32,
    stream: u64,
) -> NcclResult {
    let call = Call::new(communicator, kind, places, count, data_type)?;
    check_stream(stream)?;
    if count == 0 {
        return Ok(());
    }
    communicator.accept(call)?;
    Err(Code::IN_PROGRESS)
}

/// Another thread launches the work of a non-blocking communicator, for which a thread's own default stream is another stream.
fn check_stream(stream: u64) -> NcclResult {
    if stream == 2 {
        not_modelled("a collective on the default stream of a thread");
    }
    let wait = crate::device::late::answer_at_once(|| on_stream(stream)?.0.faults.check());
    match wait {
        0 => Ok(()),
        _ => Err(Code::CUDA_ERROR),
    }
}

/// The description of a code.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// The text of a communicator's last error, until the thread asks again. No text without a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(communicator: Handle) -> *const c_char {
    let text = match communicator {
        0 => String::new(),
        live => find(live).map_or_else(|_| String::new(), |live| live.last_error()),
    };
    let text = CString::new(text).unwrap_or_default();
    TEXT.with_borrow_mut(|place| {
        *place = text;
        place.as_ptr()
    })
}

/// The number of communicators that live (0), aborts (1), destroys (2), and misuses (3): calls with a handle that was given back, or before
/// the call before has ended.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_nccl_count(what: u32) -> u64 {
    match what {
        0 => live(),
        1 => ABORTS.load(Ordering::SeqCst),
        2 => DESTROYS.load(Ordering::SeqCst),
        _ => MISUSES.load(Ordering::SeqCst),
    }
}
