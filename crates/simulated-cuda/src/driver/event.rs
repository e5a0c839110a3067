//! Events.

use std::time::Instant;

use super::current::{self, on_stream};
use crate::device::late::{answer_at_once, answer_when_ready};
use crate::device::objects::Event;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{Outcome, Status, answer, store};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`, which requires `CU_EVENT_DISABLE_TIMING`.
const INTERPROCESS: u32 = 4;
/// All flags, with `CU_EVENT_BLOCKING_SYNC`.
const FLAGS: u32 = 1 | DISABLE_TIMING | INTERPROCESS;

/// Creates an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut u64, flags: u32) -> u32 {
    answer_at_once(|| {
        let mut device = current::sound_device()?;
        let timing = flags & DISABLE_TIMING == 0;
        if flags & !FLAGS != 0 || (flags & INTERPROCESS != 0 && timing) {
            return Err(Status::INVALID_VALUE);
        }
        if device.faults.events.strikes() {
            return Err(Status::OUT_OF_MEMORY);
        }
        let serial = device.objects.serial();
        device.objects.events.insert(
            serial,
            Event {
                timing,
                recorded: None,
                pending: 0,
                collectives: 0,
            },
        );
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(event, device.handle(Kind::Event, serial)) }
    })
}

/// Destroys an event, also in a lost context, whose status it then returns.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> u32 {
    answer_at_once(|| {
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
    answer_at_once(|| record(event, stream))
}

fn record(event: u64, stream: u64) -> Outcome {
    let (mut device, key) = on_stream(stream)?;
    device.faults.check()?;
    let handle = crate::handle::Handle::decode(event, Kind::Event)?;
    if handle.device != device.ordinal {
        return Err(Status::INVALID_HANDLE);
    }
    let snapshot = device.clocks.record(key);
    let lag = device.faults.event_lag;
    let collectives = device.late.collectives;
    let known = device
        .objects
        .events
        .get_mut(&handle.serial)
        .ok_or(Status::INVALID_HANDLE)?;
    known.recorded = Some((Instant::now(), snapshot));
    known.pending = lag;
    known.collectives = collectives;
    Ok(())
}

/// Records the point that a stream has reached; flags matter only for captures.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: u64, stream: u64, _flags: u32) -> u32 {
    answer_at_once(|| record(event, stream))
}

/// Whether the work before an event is finished: at once, after the number of queries that a test has set, or when all ranks have called
/// the collectives before it. An event that was never recorded counts as finished.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> u32 {
    answer_when_ready(|| {
        let (mut device, serial) = of_handle(event, Kind::Event)?;
        device.faults.check()?;
        let executed = device.late.executed;
        let events = &mut device.objects.events;
        let event = events.get_mut(&serial).ok_or(Status::INVALID_HANDLE)?;
        if event.collectives > executed {
            return Err(Status::NOT_READY);
        }
        if event.pending > 0 {
            event.pending -= 1;
            return Err(Status::NOT_READY);
        }
        // Events recorded earlier are finished too.
        if let Some((reached, _)) = event.recorded.clone() {
            for event in events.values_mut() {
                if (event.recorded.as_ref()).is_some_and(|(recorded, _)| *recorded <= reached) {
                    event.pending = 0;
                }
            }
        }
        Ok(())
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
            .map(|(time, _)| {
                let is_done = known.collectives <= device.late.executed;
                (*time, is_done && known.pending == 0)
            })
            .ok_or(Status::INVALID_HANDLE)
    };
    let ((start, first), (end, second)) = (recorded(start)?, recorded(end)?);
    if !(first && second) {
        return Err(Status::NOT_READY);
    }
    let seconds = match end.checked_duration_since(start) {
        Some(time) => time.as_secs_f32(),
        None => -start.duration_since(end).as_secs_f32(),
    };
    // SAFETY: the caller of the entry point passes a place for one number.
    unsafe { store(milliseconds, seconds * 1e3) }
}

/// The time between two recordings in milliseconds: host time here. `NOT_READY` while one of them is not finished,
/// `INVALID_HANDLE` for an event without timing or without a recording.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) -> u32 {
    answer_when_ready(|| elapsed(milliseconds, start, end))
}

/// The time between two recordings in milliseconds: host time here. `NOT_READY` while one of them is not finished,
/// `INVALID_HANDLE` for an event without timing or without a recording.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: u64,
    end: u64,
) -> u32 {
    answer_when_ready(|| elapsed(milliseconds, start, end))
}
