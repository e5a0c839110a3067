//! The driver's status codes, and how entry points return them.

use crate::{counts, report};

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(pub u32);

/// The result of the simulator's own functions; only the entry points turn it into a number.
pub type Outcome<T = ()> = Result<T, Status>;

/// The number for success, in every library that is modelled.
pub const SUCCESS: u32 = 0;

impl Status {
    pub const INVALID_VALUE: Status = Status(1);
    pub const OUT_OF_MEMORY: Status = Status(2);
    pub const NOT_INITIALIZED: Status = Status(3);
    /// The device is busy, or another process uses it in exclusive mode. Not sticky.
    pub const DEVICE_UNAVAILABLE: Status = Status(46);
    pub const INVALID_DEVICE: Status = Status(101);
    pub const INVALID_IMAGE: Status = Status(200);
    pub const INVALID_CONTEXT: Status = Status(201);
    pub const UNSUPPORTED_LIMIT: Status = Status(215);
    pub const INVALID_PTX: Status = Status(218);
    pub const UNSUPPORTED_PTX_VERSION: Status = Status(222);
    pub const FILE_NOT_FOUND: Status = Status(301);
    pub const INVALID_HANDLE: Status = Status(400);
    pub const NOT_FOUND: Status = Status(500);
    /// The queried work is not finished yet. Not an error.
    pub const NOT_READY: Status = Status(600);
    pub const ILLEGAL_ADDRESS: Status = Status(700);
    pub const LAUNCH_TIMEOUT: Status = Status(702);
    pub const CONTEXT_IS_DESTROYED: Status = Status(709);
    pub const ASSERT: Status = Status(710);
    pub const MISALIGNED_ADDRESS: Status = Status(716);
    pub const NOT_SUPPORTED: Status = Status(801);
}

/// Runs an entry point and returns its `CUresult`.
pub fn answer(body: impl FnOnce() -> Outcome) -> u32 {
    let outcome = match report::in_fork() {
        false => {
            counts::call(&body);
            body()
        }
        true => Err(Status::NOT_INITIALIZED),
    };
    match outcome {
        Ok(()) => SUCCESS,
        Err(Status(code)) => code,
    }
}

/// Writes a result to the caller's pointer. As in CUDA, null is an error.
///
/// # Safety
/// `place` is null or points to memory for one `T`.
pub unsafe fn store<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, and by contract writable; callers may pass unaligned places.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Writes a result, or nothing if the caller passes a null pointer.
///
/// # Safety
/// As for [`store`].
pub unsafe fn store_if_wanted<T>(place: *mut T, value: T) {
    // SAFETY: as for `store`; a null place is simply not written.
    let _ = unsafe { store(place, value) };
}

/// Prints a message and aborts: the program called something that is not simulated, and any answer would be made up.
pub fn not_modelled(what: &str) -> ! {
    report::problem("not modelled", what);
    eprintln!("simulated CUDA: {what} is not modelled");
    std::process::abort()
}
