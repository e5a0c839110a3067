//! nvrtc: there is no compiler, so every program fails to compile, with a message that says so.

use std::ffi::c_char;

use crate::driver::device_query::store_text;
use crate::status::{SUCCESS, store};

const INVALID_INPUT: u32 = 3;
const COMPILATION: u32 = 6;
const MESSAGE: &str = "the simulated CUDA driver does not compile: load PTX that nvcc has made";

fn answer(outcome: crate::status::Outcome) -> u32 {
    if outcome.is_ok() {
        SUCCESS
    } else {
        INVALID_INPUT
    }
}

/// The version of CUDA 13.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut i32, minor: *mut i32) -> u32 {
    // SAFETY: the caller passes places for two numbers.
    answer(unsafe { store(major, 13).and_then(|()| store(minor, 0)) })
}

/// Creates a program. All programs share one handle, because none compiles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut u64,
    _source: u64,
    _name: u64,
    _headers: i32,
    _texts: u64,
    _names: u64,
) -> u32 {
    // SAFETY: the caller passes a place for one handle.
    answer(unsafe { store(program, 1) })
}

/// Destroys a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut u64) -> u32 {
    // SAFETY: the caller passes its handle's place.
    answer(unsafe { store(program, 0) })
}

/// Fails.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCompileProgram(_program: u64, _count: i32, _options: u64) -> u32 {
    COMPILATION
}

/// The length of the message, with its final zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(_program: u64, bytes: *mut usize) -> u32 {
    // SAFETY: the caller passes a place for one number.
    answer(unsafe { store(bytes, MESSAGE.len() + 1) })
}

/// The message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(_program: u64, text: *mut c_char) -> u32 {
    // SAFETY: the caller has room for the length that it was told.
    answer(unsafe { store_text(text, MESSAGE.len() + 1, MESSAGE) })
}

/// The description of a status.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(status: u32) -> *const c_char {
    let text = match status {
        SUCCESS => c"NVRTC_SUCCESS",
        1 => c"NVRTC_ERROR_OUT_OF_MEMORY",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}
