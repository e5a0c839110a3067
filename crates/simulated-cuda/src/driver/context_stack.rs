//! The stack of contexts of the calling thread.

use super::current;
use crate::device::late::answer_at_once;
use crate::handle::Kind;
use crate::simulator::{check_initialized, of_handle};
use crate::status::{Outcome, Status, answer, store, store_if_wanted};

fn check(context: u64) -> Outcome {
    check_initialized()?;
    if context == 0 {
        return Ok(());
    }
    let (device, serial) =
        of_handle(context, Kind::Context).map_err(|_| Status::INVALID_CONTEXT)?;
    if device.objects.has_context(serial) {
        Ok(())
    } else {
        Err(Status::INVALID_CONTEXT)
    }
}

/// The current context; null without one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> u32 {
    answer_at_once(|| {
        check_initialized()?;
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(context, current::get()) }
    })
}

/// Replaces the current context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> u32 {
    answer_at_once(|| {
        check(context)?;
        current::set(context);
        Ok(())
    })
}

/// Pushes a context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: u64) -> u32 {
    answer_at_once(|| {
        check(context)?;
        let pushed = context != 0 && current::push(context);
        if pushed {
            Ok(())
        } else {
            Err(Status::INVALID_CONTEXT)
        }
    })
}

/// Pops the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> u32 {
    answer(|| {
        check_initialized()?;
        let popped = current::pop();
        if popped == 0 {
            return Err(Status::INVALID_CONTEXT);
        }
        // SAFETY: null, or a place for one handle.
        unsafe { store_if_wanted(context, popped) };
        Ok(())
    })
}

/// The device of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(ordinal: *mut i32) -> u32 {
    answer(|| {
        let device = current::device()?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(ordinal, device.ordinal as i32) }
    })
}

/// Waits for all work of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    answer(|| current::device()?.synchronize(None))
}
