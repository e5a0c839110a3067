//! Contexts: a device's primary context, and others that share all state with it.

use super::current;
use crate::card::Card;
use crate::handle::Kind;
use crate::simulator::{device, of_handle};
use crate::status::{Outcome, Status, answer, not_modelled, store, store_if_wanted};

/// Retains a device's primary context. The first time takes device memory, and fails if a test has injected that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, ordinal: i32) -> u32 {
    answer(|| {
        let mut device = device(ordinal)?;
        if device.objects.retained == 0 {
            if let Some(status) = device.faults.context {
                return Err(status);
            }
            device.memory.take_overhead(Card::get().context)?;
        }
        device.objects.retained += 1;
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(context, device.handle(Kind::Context, 0)) }
    })
}

/// Releases the primary context; the last release returns its memory. Objects that the program created in it stay counted, so that
/// leaks remain visible.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) -> u32 {
    answer(|| {
        let mut device = device(ordinal)?;
        if device.objects.retained == 0 {
            return Err(Status::INVALID_CONTEXT);
        }
        device.objects.retained -= 1;
        if device.objects.retained == 0 {
            device.memory.overhead -= Card::get().context;
        }
        Ok(())
    })
}

/// Resets the primary context. Modelled only while it is not retained, when there is nothing to reset.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(ordinal: i32) -> u32 {
    answer(|| {
        if device(ordinal)?.objects.retained > 0 {
            not_modelled("cuDevicePrimaryCtxReset_v2 of a context in use");
        }
        Ok(())
    })
}

/// Whether the primary context is retained, and its flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    ordinal: i32,
    flags: *mut u32,
    active: *mut i32,
) -> u32 {
    answer(|| {
        let device = device(ordinal)?;
        // SAFETY: the caller passes places for two numbers.
        unsafe {
            store_if_wanted(flags, device.objects.settings.flags);
            store(active, i32::from(device.objects.retained > 0))
        }
    })
}

/// Sets the primary context's flags.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, flags: u32) -> u32 {
    answer(|| {
        device(ordinal)?.objects.settings.flags = flags;
        Ok(())
    })
}

fn create(context: *mut u64, ordinal: i32) -> Outcome {
    let mut device = device(ordinal)?;
    device.memory.take_overhead(Card::get().context)?;
    let serial = device.objects.serial();
    device.objects.contexts.push(serial);
    let handle = device.handle(Kind::Context, serial);
    current::push(handle);
    // SAFETY: the caller of the entry point passes a place for one handle.
    unsafe { store(context, handle) }
}

/// Creates another context and makes it current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut u64, _flags: u32, ordinal: i32) -> u32 {
    answer(|| create(context, ordinal))
}

/// Creates another context and makes it current; its affinity to multiprocessors is not modelled. CUDA 13 has [`cuCtxCreate_v4`] instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut u64,
    _affinities: u64,
    count: i32,
    _flags: u32,
    ordinal: i32,
) -> u32 {
    answer(|| {
        if count != 0 {
            not_modelled("cuCtxCreate_v3 with an affinity");
        }
        create(context, ordinal)
    })
}

/// Creates another context and makes it current; parameters (affinity, graphics) are not modelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut u64,
    parameters: u64,
    _flags: u32,
    ordinal: i32,
) -> u32 {
    answer(|| {
        if parameters != 0 {
            not_modelled("cuCtxCreate_v4 with parameters");
        }
        create(context, ordinal)
    })
}

/// Destroys a context created by [`cuCtxCreate_v4`].
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: u64) -> u32 {
    answer(|| {
        let (mut device, serial) = of_handle(context, Kind::Context)?;
        let known = device
            .objects
            .contexts
            .iter()
            .position(|&other| other == serial);
        device
            .objects
            .contexts
            .swap_remove(known.ok_or(Status::INVALID_CONTEXT)?);
        device.memory.overhead -= Card::get().context;
        if current::get() == context {
            current::pop();
        }
        Ok(())
    })
}
