//! Streams. Work is done at once, in the order of the calls, which is one of the schedules that CUDA allows.

use super::current::{self, on_stream};
use crate::device::late::{answer_at_once, answer_when_ready};
use crate::device::objects::Stream;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{Outcome, Status, answer, not_modelled, store, store_if_wanted};

fn create(stream: *mut u64, flags: u32, priority: i32) -> Outcome {
    let mut device = current::sound_device()?;
    if stream.is_null() || flags > 1 {
        return Err(Status::INVALID_VALUE);
    }
    let serial = device.objects.serial();
    device
        .objects
        .streams
        .insert(serial, Stream { flags, priority });
    // SAFETY: not null; the caller of the entry point passes a place for one handle.
    unsafe { store(stream, device.handle(Kind::Stream, serial)) }
}

/// Creates a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut u64, flags: u32) -> u32 {
    answer(|| create(stream, flags, 0))
}

/// Creates a stream with a priority, which has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut u64,
    flags: u32,
    priority: i32,
) -> u32 {
    answer(|| create(stream, flags, priority))
}

/// Destroys a stream, also in a lost context, whose status it then returns.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> u32 {
    answer(|| {
        drop(current::device()?);
        let (mut device, serial) = of_handle(stream, Kind::Stream)?;
        device
            .objects
            .streams
            .remove(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        device.faults.check()
    })
}

/// Waits for a stream's work.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> u32 {
    answer(|| {
        let (mut device, key) = on_stream(stream)?;
        device.synchronize(Some(key))
    })
}

/// Whether a stream's work is finished, which it is unless a collective waits for other ranks. It does not synchronize, so no memory
/// returns to the device.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: u64) -> u32 {
    answer_when_ready(|| {
        let device = on_stream(stream)?.0;
        device.faults.check()?;
        match device.late.has_collectives() {
            true => Err(Status::NOT_READY),
            false => Ok(()),
        }
    })
}

/// Orders later work on a stream after an event.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) -> u32 {
    answer_at_once(|| {
        let (device, key) = on_stream(stream)?;
        device.faults.check()?;
        let ordinal = device.ordinal;
        drop(device);
        let (mut device, serial) = of_handle(event, Kind::Event)?;
        let known = device
            .objects
            .events
            .get(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        let Some((_, snapshot)) = known.recorded.clone() else {
            return Ok(());
        };
        // Each device stores the marks of its own frees and what each stream knows about them.
        device.clocks.wait(key, &snapshot);
        if device.ordinal != ordinal {
            drop(device);
            crate::simulator::lock(ordinal)
                .ok_or(Status::INVALID_HANDLE)?
                .clocks
                .wait(key, &snapshot);
        }
        Ok(())
    })
}

/// Whether a stream is being captured into a graph: never, because captures are not modelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: u64, status: *mut u32) -> u32 {
    answer(|| {
        on_stream(stream)?.0.faults.check()?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(status, 0) }
    })
}

/// The state of a capture: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: u64,
    status: *mut u32,
    id: *mut u64,
    _graph: u64,
    _dependencies: u64,
    _count: u64,
) -> u32 {
    answer(|| {
        on_stream(stream)?.0.faults.check()?;
        // SAFETY: the caller passes places for two numbers; the other results are only written during a capture.
        unsafe {
            store_if_wanted(id, 0);
            store(status, 0)
        }
    })
}

/// A stream's flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetFlags(stream: u64, flags: *mut u32) -> u32 {
    answer(|| {
        let (device, serial) = of_handle(stream, Kind::Stream)?;
        let known = device
            .objects
            .streams
            .get(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(flags, known.flags) }
    })
}

/// A stream's priority.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetPriority(stream: u64, priority: *mut i32) -> u32 {
    answer(|| {
        let (device, serial) = of_handle(stream, Kind::Stream)?;
        let known = device
            .objects
            .streams
            .get(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(priority, known.priority) }
    })
}

/// A stream's context: the primary one of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: u64, context: *mut u64) -> u32 {
    answer(|| {
        let (device, _) = on_stream(stream)?;
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(context, device.handle(Kind::Context, 0)) }
    })
}

/// Calls a host function after the stream's work, which means at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: u64,
    function: Option<extern "C" fn(u64)>,
    data: u64,
) -> u32 {
    answer(|| {
        on_stream(stream)?.0.faults.check()?;
        // No lock is held here, because the function may take long.
        match function {
            Some(function) => function(data),
            None => not_modelled("cuLaunchHostFunc without a function"),
        }
        Ok(())
    })
}
