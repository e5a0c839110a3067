//! Device memory: synchronous and stream-ordered calls.

use super::current::{self, on_stream};
use crate::device::clock::StreamKey;
use crate::device::late::answer_when_ready;
use crate::device::memory::DIRECT;
use crate::handle::{Handle, Kind};
use crate::simulator;
use crate::status::{Outcome, Status, answer, store};

/// Free and total bytes of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    answer_when_ready(|| {
        let device = current::sound_device()?;
        // SAFETY: the caller passes places for two numbers.
        unsafe {
            store(free, device.memory.free_bytes() as usize)?;
            store(total, device.memory.capacity as usize)
        }
    })
}

/// Allocates outside the stream-ordered pools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> u32 {
    answer(|| {
        let mut device = current::device()?;
        if bytes == 0 || pointer.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let address = device.allocate(DIRECT, bytes as u64, StreamKey::Legacy)?;
        // SAFETY: the caller passes a place for one address.
        unsafe { store(pointer, address) }
    })
}

/// Allocates on a stream, from the device's current pool. A request for 0 bytes returns a null address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(pointer: *mut u64, bytes: usize, stream: u64) -> u32 {
    answer_when_ready(|| {
        let (device, key) = on_stream(stream)?;
        if !device.pools_supported {
            return Err(Status::NOT_SUPPORTED);
        }
        let pool = device.memory.current_pool;
        // SAFETY: the caller passes a place for one address.
        unsafe { allocate(device, pool, bytes, key, pointer) }
    })
}

/// Allocates on a stream, from a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    pointer: *mut u64,
    bytes: usize,
    pool: u64,
    stream: u64,
) -> u32 {
    answer_when_ready(|| {
        let (stream_device, key) = on_stream(stream)?;
        stream_device.faults.check()?;
        drop(stream_device);
        let (mut device, serial) = simulator::of_handle(pool, Kind::Pool)?;
        device.memory.pool(serial)?;
        // SAFETY: the caller passes a place for one address.
        unsafe { allocate(device, serial, bytes, key, pointer) }
    })
}

/// # Safety
/// `pointer` is null or a place for one address.
unsafe fn allocate(
    mut device: std::sync::MutexGuard<'_, crate::device::Device>,
    pool: u64,
    bytes: usize,
    key: StreamKey,
    pointer: *mut u64,
) -> Outcome {
    device.faults.check()?;
    if pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let address = if bytes == 0 {
        0
    } else {
        device.allocate(pool, bytes as u64, key)?
    };
    // SAFETY: by contract.
    unsafe { store(pointer, address) }
}

/// Frees memory of either kind, for every stream at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> u32 {
    answer(|| free(pointer, None))
}

/// Frees memory of either kind on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(pointer: u64, stream: u64) -> u32 {
    answer_when_ready(|| free(pointer, Some(stream)))
}

fn free(pointer: u64, stream: Option<u64>) -> Outcome {
    let own = stream
        .and_then(|raw| Handle::decode(raw, Kind::Stream).ok())
        .map(|handle| handle.device);
    let owner = simulator::owner(pointer);
    // By CUDA's documentation only a default stream needs a current context.
    let of_stream = own
        .filter(|_| current::get() == 0)
        .and_then(simulator::lock);
    let usable = match of_stream.filter(|device| !device.frees_need_context) {
        Some(mut device) => {
            device.faults.call();
            Ok(())
        }
        None => current::device_or_blame(owner.or(own)).map(drop),
    };
    if let Err(status) = usable {
        if let Some(mut device) = owner.and_then(simulator::lock) {
            device.counted.refused_frees += 1;
        }
        return Err(status);
    }
    let key = stream.map(current::stream_key).transpose()?;
    if pointer == 0 {
        return Ok(());
    }
    let mut device =
        simulator::lock(owner.ok_or(Status::INVALID_VALUE)?).ok_or(Status::INVALID_VALUE)?;
    if !device.late.has_collectives() {
        return device.free(pointer, key);
    }
    // The collective may use the memory.
    device.execute(move |device| device.free(pointer, key));
    Ok(())
}
