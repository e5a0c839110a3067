//! Copies. Device addresses are checked against live allocations; host addresses are not.

use std::sync::MutexGuard;

use super::current::{self, on_stream};
use crate::counts::{self, Direction};
use crate::device::late::answer_at_once;
use crate::device::{Device, pages};
use crate::simulator;
use crate::status::{Outcome, Status, answer};

/// Locks the devices that own these addresses, in the order of their ordinals, and checks that the bytes are live.
/// An address that no device owns must be in pinned host memory of the current device.
pub fn lock_owners(
    addresses: &[u64],
    bytes: u64,
    stream: Option<u64>,
) -> Outcome<Vec<MutexGuard<'static, Device>>> {
    let device = match stream {
        Some(stream) => on_stream(stream)?.0,
        None => current::device()?,
    };
    device.faults.check()?;
    let here = device.ordinal;
    drop(device);
    let owner = |address: u64| simulator::owner(address).unwrap_or(here);
    let mut ordinals: Vec<usize> = addresses
        .iter()
        .map(|&address| owner(address))
        .chain([here])
        .collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut devices: Vec<_> = ordinals.into_iter().filter_map(simulator::lock).collect();
    for &address in addresses {
        let ordinal = owner(address);
        let device = devices
            .iter()
            .find(|device| device.ordinal == ordinal)
            .ok_or(Status::INVALID_VALUE)?;
        if !device.memory.covers(address, bytes) {
            return Err(Status::INVALID_VALUE);
        }
    }
    if let Some(device) = devices.iter_mut().find(|device| device.ordinal == here) {
        device.faults.work()?;
        device.counted.copies += 1;
        device.trace.note(|| format!("copy {bytes}"));
    }
    Ok(devices)
}

/// Says whose contents are known after a copy, and what the host has read without knowing it.
fn note_contents(devices: &mut [MutexGuard<'static, Device>], to: u64, from: u64, bytes: u64) {
    let known = devices.iter().all(|device| device.knows(from));
    let to_host = simulator::owner(to).is_none();
    for device in devices {
        if to_host {
            device.note_read_back(from, to, bytes);
        } else {
            device.note_written(to, bytes, known);
        }
    }
}

/// Counts a copy. The host waits for one to itself, unless it is to pinned memory on a stream.
fn count(
    devices: &[MutexGuard<'static, Device>],
    to: u64,
    from: u64,
    bytes: u64,
    stream: Option<u64>,
) {
    let [from_device, to_device] = [from, to].map(|address| simulator::owner(address).is_some());
    let is_pinned = || devices.iter().any(|device| device.memory.is_pinned(to));
    let blocks = from_device && !to_device && (stream.is_none() || !is_pinned());
    counts::copy(Direction::new(from_device, to_device), bytes, blocks);
}

/// # Safety
/// The addresses that are not in `checked` must be valid for `bytes` bytes, those of pinned memory until the copy is done.
unsafe fn copy(to: u64, from: u64, bytes: usize, checked: &[u64], stream: Option<u64>) -> Outcome {
    let mut devices = lock_owners(checked, bytes as u64, stream)?;
    if counts::are_on() {
        count(&devices, to, from, bytes as u64, stream);
    }
    if bytes == 0 {
        return Ok(());
    }
    if let ([device], Some(stream)) = (devices.as_mut_slice(), stream) {
        let stream = current::stream_key(stream)?;
        device.note_write(to..to + bytes as u64, stream);
        device.note_use(from..from + bytes as u64, stream);
        device.follow_copy(to, from, bytes as u64, stream);
    }
    note_contents(&mut devices, to, from, bytes as u64);
    if !devices.iter().all(|device| device.keeps(to)) {
        return Ok(());
    }
    if devices.iter().any(|device| !device.computes) {
        let is_written = |address| devices.iter().all(|device| device.is_written(address));
        if !is_written(from) {
            // Pages of pinned memory that nobody has touched take no memory.
            let is_pinned = |address| {
                devices
                    .iter()
                    .any(|device| device.memory.is_pinned(address))
            };
            if is_written(to) && !is_pinned(to) {
                // SAFETY: by contract, or checked, as below.
                unsafe { std::ptr::write_bytes(to as *mut u8, 0, bytes) };
            }
            return Ok(());
        }
        devices
            .iter_mut()
            .for_each(|device| device.mark_written(to));
    }
    if let [device] = devices.as_mut_slice()
        && stream.is_some()
        && device.defers()
    {
        // SAFETY: the same contract.
        unsafe { copy_late(device, to, from, bytes, checked) };
        return Ok(());
    }
    devices.iter_mut().for_each(|device| device.finish());
    let samples = devices.iter().any(|device| device.samples);
    // SAFETY: checked addresses lie in live allocations, which stay live while the devices are locked; the others are valid by
    // contract.
    unsafe { transfer(samples, to, from, bytes) };
    Ok(())
}

/// Copies bytes, which may overlap. Between devices' memory of which few pages exist, it makes no others exist.
///
/// # Safety
/// Both are valid for `bytes` bytes.
unsafe fn transfer(samples: bool, to: u64, from: u64, bytes: usize) {
    let is_device = |address| simulator::owner(address).is_some();
    match samples && is_device(to) && is_device(from) {
        // SAFETY: by contract. Devices' memory lies in their mappings, which are private and anonymous.
        true => unsafe { pages::copy(to, from, bytes) },
        // SAFETY: by contract.
        false => unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) },
    }
}

/// As CUDA does: a copy from pageable memory has read it, and one to pageable memory is done, when the call returns.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_late(device: &mut Device, to: u64, from: u64, bytes: usize, checked: &[u64]) {
    let is_known = |address: u64| device.memory.allocation(address).is_some();
    let (knows_to, knows_from) = (is_known(to), is_known(from));
    if !knows_to {
        device.finish();
        // SAFETY: by contract.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    } else if knows_from {
        let addresses = [&[to, from], checked].concat();
        device.execute(move |device| {
            device.check_live(&addresses, bytes as u64)?;
            // SAFETY: both lie in live memory, which stays live while the device is locked.
            unsafe { transfer(device.samples, to, from, bytes) };
            Ok(())
        });
    } else {
        // SAFETY: by contract.
        let read = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec();
        device.execute(move |device| {
            device.check_live(&[to], bytes as u64)?;
            // SAFETY: live memory, which stays live while the device is locked.
            unsafe { std::ptr::copy(read.as_ptr(), to as *mut u8, bytes) };
            Ok(())
        });
    }
}

/// Host to device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> u32 {
    // SAFETY: the caller passes a host address that is valid for reading.
    answer(|| unsafe { copy(to, from, bytes, &[to], None) })
}

/// Host to device, on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    stream: u64,
) -> u32 {
    // SAFETY: the caller passes a host address that is valid for reading.
    answer_at_once(|| unsafe { copy(to, from, bytes, &[to], Some(stream)) })
}

/// Device to host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> u32 {
    // SAFETY: the caller passes a host address that is valid for writing.
    answer(|| unsafe { copy(to, from, bytes, &[from], None) })
}

/// Device to host, on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    stream: u64,
) -> u32 {
    // SAFETY: the caller passes a host address that is valid for writing.
    answer_at_once(|| unsafe { copy(to, from, bytes, &[from], Some(stream)) })
}

/// Device to device.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> u32 {
    // SAFETY: both addresses are checked.
    answer(|| unsafe { copy(to, from, bytes, &[to, from], None) })
}

/// Device to device, on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    // SAFETY: both addresses are checked.
    answer_at_once(|| unsafe { copy(to, from, bytes, &[to, from], Some(stream)) })
}

/// From one device to another, which follow from the addresses.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeer(
    to: u64,
    _to_context: u64,
    from: u64,
    _from_context: u64,
    bytes: usize,
) -> u32 {
    // SAFETY: both addresses are checked.
    answer(|| unsafe { copy(to, from, bytes, &[to, from], None) })
}

/// From one device to another, which follow from the addresses, on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: u64,
    from: u64,
    _from_context: u64,
    bytes: usize,
    stream: u64,
) -> u32 {
    // SAFETY: both addresses are checked.
    answer_at_once(|| unsafe { copy(to, from, bytes, &[to, from], Some(stream)) })
}

/// Between any two addresses; device addresses are checked.
///
/// # Safety
/// Host addresses must be valid for `bytes` bytes.
unsafe fn copy_any(to: u64, from: u64, bytes: usize, stream: Option<u64>) -> Outcome {
    let checked: Vec<u64> = [to, from]
        .into_iter()
        .filter(|&address| simulator::owner(address).is_some())
        .collect();
    // SAFETY: by contract.
    unsafe { copy(to, from, bytes, &checked, stream) }
}

/// Between any two addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> u32 {
    // SAFETY: the caller passes valid host addresses, where they are the host's.
    answer(|| unsafe { copy_any(to, from, bytes, None) })
}

/// Between any two addresses, on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    // SAFETY: the caller passes valid host addresses, where they are the host's.
    answer_at_once(|| unsafe { copy_any(to, from, bytes, Some(stream)) })
}
