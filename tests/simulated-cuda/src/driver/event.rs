//! Events.

use std::time::Instant;

use super::current::{self, on_stream};
use crate::device::objects::Event;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{Outcome, Status, answer, store};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// Creates an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut u64, flags: u32) -> u32 {
    answer(|| {
        let mut device = current::sound_device()?;
        if device.faults.events.strikes() {
            return Err(Status::OUT_OF_MEMORY);
        }
        let serial = device.objects.serial();
        let timing = flags & DISABLE_TIMING == 0;
        device.objects.events.insert(
            serial,
            Event {
                timing,
                recorded: None,
            },
        );
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(event, device.handle(Kind::Event, serial)) }
    })
}

/// Destroys an event, also in a lost context, whose status it then gives.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> u32 {
    answer(|| {
        drop(current::device()?);
        let (mut device, serial) = of_handle(event, Kind::Event)?;
        device
            .objects
            .events
            .remove(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        device.faults.check()
    })
}

/// Records the point that a stream has reached.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> u32 {
    answer(|| {
        let (mut device, key) = on_stream(stream)?;
        device.faults.check()?;
        let handle = crate::handle::Handle::decode(event, Kind::Event)?;
        if handle.device != device.ordinal {
            return Err(Status::INVALID_HANDLE);
        }
        let snapshot = device.clocks.record(key);
        let known = device
            .objects
            .events
            .get_mut(&handle.serial)
            .ok_or(Status::INVALID_HANDLE)?;
        known.recorded = Some((Instant::now(), snapshot));
        Ok(())
    })
}

/// Records the point that a stream has reached; flags only matter to captures.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: u64, stream: u64, _flags: u32) -> u32 {
    cuEventRecord(event, stream)
}

/// Whether the work before an event is finished: it always is.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> u32 {
    answer(|| {
        let (device, serial) = of_handle(event, Kind::Event)?;
        device.faults.check()?;
        device
            .objects
            .events
            .get(&serial)
            .map(|_| ())
            .ok_or(Status::INVALID_HANDLE)
    })
}

/// Waits for the work before an event.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: u64) -> u32 {
    answer(|| {
        drop(current::device()?);
        let (mut device, serial) = of_handle(event, Kind::Event)?;
        device.faults.check()?;
        let known = device
            .objects
            .events
            .get(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        if let Some((_, snapshot)) = known.recorded.clone() {
            device.clocks.finish(&snapshot);
        }
        device.synchronized();
        Ok(())
    })
}

fn elapsed(milliseconds: *mut f32, start: u64, end: u64) -> Outcome {
    let recorded = |event: u64| {
        let (device, serial) = of_handle(event, Kind::Event)?;
        device.faults.check()?;
        let known = device
            .objects
            .events
            .get(&serial)
            .filter(|event| event.timing)
            .ok_or(Status::INVALID_HANDLE)?;
        known
            .recorded
            .as_ref()
            .map(|(time, _)| *time)
            .ok_or(Status::INVALID_HANDLE)
    };
    let (start, end) = (recorded(start)?, recorded(end)?);
    let seconds = match end.checked_duration_since(start) {
        Some(time) => time.as_secs_f32(),
        None => -start.duration_since(end).as_secs_f32(),
    };
    // SAFETY: the caller of the entry point passes a place for one number.
    unsafe { store(milliseconds, seconds * 1e3) }
}

/// The time between two recordings, which is host time here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) -> u32 {
    answer(|| elapsed(milliseconds, start, end))
}

/// The time between two recordings, which is host time here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: u64,
    end: u64,
) -> u32 {
    answer(|| elapsed(milliseconds, start, end))
}
