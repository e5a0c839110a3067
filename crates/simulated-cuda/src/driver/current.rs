//! The context that is current to a thread, and the device and stream that a call uses.

use std::cell::Cell;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::device::clock::StreamKey;
use crate::handle::{Handle, Kind};
use crate::simulator;
use crate::status::{Outcome, Status};

/// The most contexts on a thread's stack.
const DEPTH: usize = 32;

/// A thread's stack of contexts; the last one is current. It consists of plain cells, so that it outlives all destructors of the thread.
struct Stack {
    contexts: [Cell<u64>; DEPTH],
    depth: Cell<usize>,
}

static LAST_THREAD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static STACK: Stack = const { Stack { contexts: [const { Cell::new(0) }; DEPTH], depth: Cell::new(0) } };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// The current context's handle; 0 without one.
pub fn get() -> u64 {
    STACK.with(|stack| {
        stack
            .depth
            .get()
            .checked_sub(1)
            .map_or(0, |top| stack.contexts[top].get())
    })
}

/// Replaces the current context; 0 removes it.
pub fn set(context: u64) {
    pop();
    if context != 0 {
        push(context);
    }
}

/// Pushes a context; returns false if there are too many.
pub fn push(context: u64) -> bool {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let fits = depth < DEPTH;
        if fits {
            stack.contexts[depth].set(context);
            stack.depth.set(depth + 1);
        }
        fits
    })
}

/// Pops the current context; 0 without one.
pub fn pop() -> u64 {
    let top = get();
    STACK.with(|stack| stack.depth.set(stack.depth.get().saturating_sub(1)));
    top
}

/// This thread's number.
fn thread() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(LAST_THREAD.fetch_add(1, Ordering::Relaxed) + 1);
        }
        thread.get()
    })
}

/// Locks the device of the current context. A call without one is counted on the device `blamed`, whose memory the call would have
/// freed.
pub fn device_or_blame(blamed: Option<usize>) -> Outcome<MutexGuard<'static, Device>> {
    simulator::check_initialized()?;
    let context = get();
    if context == 0 {
        if let Some(mut device) = simulator::lock(blamed.unwrap_or(0)) {
            device.counted.invalid_context_calls += 1;
        }
        return Err(Status::INVALID_CONTEXT);
    }
    let (mut device, serial) = simulator::of_handle(context, Kind::Context)?;
    if device.objects.has_context(serial) {
        device.faults.call();
        Ok(device)
    } else {
        Err(Status::CONTEXT_IS_DESTROYED)
    }
}

/// Locks the device of the current context.
pub fn device() -> Outcome<MutexGuard<'static, Device>> {
    device_or_blame(None)
}

/// Locks the device of the current context, which must not be lost.
pub fn sound_device() -> Outcome<MutexGuard<'static, Device>> {
    let device = device()?;
    device.faults.check()?;
    Ok(device)
}

/// The stream that a handle refers to on this thread.
pub fn stream_key(stream: u64) -> Outcome<StreamKey> {
    match stream {
        0 | 1 => Ok(StreamKey::Legacy),
        2 => Ok(StreamKey::PerThread(thread())),
        raw => Handle::decode(raw, Kind::Stream).map(|_| StreamKey::Created(raw)),
    }
}

/// Locks the device of a stream: its own for a created stream, otherwise the current context's. A current context is needed in
/// either case. The device may be lost.
pub fn on_stream(stream: u64) -> Outcome<(MutexGuard<'static, Device>, StreamKey)> {
    let own = Handle::decode(stream, Kind::Stream)
        .ok()
        .map(|handle| handle.device);
    let mut device = device_or_blame(own)?;
    let key = stream_key(stream)?;
    if let Some(ordinal) = own.filter(|&ordinal| ordinal != device.ordinal) {
        drop(device);
        device = simulator::lock(ordinal).ok_or(Status::INVALID_HANDLE)?;
    }
    device.objects.check_stream(key)?;
    Ok((device, key))
}
