//! Memsets, of live device memory.

use std::sync::MutexGuard;

use super::copying::lock_owners;
use super::current;
use crate::counts;
use crate::device::late::answer_at_once;
use crate::device::{Device, pages};
use crate::simulator;
use crate::status::{Outcome, Status, answer};

fn fill<T: Copy + Default + PartialEq + Send + 'static>(
    to: u64,
    value: T,
    count: usize,
    stream: Option<u64>,
) -> Outcome {
    let bytes = count
        .checked_mul(size_of::<T>())
        .ok_or(Status::INVALID_VALUE)?;
    if !to.is_multiple_of(align_of::<T>() as u64) {
        return Err(Status::INVALID_VALUE);
    }
    let mut devices = lock_owners(&[to], bytes as u64, stream)?;
    counts::memset(bytes as u64);
    let samples = devices.iter().any(|device| device.samples) && simulator::owner(to).is_some();
    let fill = move || {
        if samples {
            // SAFETY: as below, in a device's mapping, which is private and anonymous.
            return unsafe { pages::fill(to, value, count) };
        }
        // SAFETY: checked to lie in a live allocation, which stays live while its device is locked, and aligned.
        unsafe { std::slice::from_raw_parts_mut(to as *mut std::mem::MaybeUninit<T>, count) }
            .fill(std::mem::MaybeUninit::new(value));
    };
    if let ([device], Some(stream)) = (devices.as_mut_slice(), stream) {
        device.note_write(to..to + bytes as u64, current::stream_key(stream)?);
    }
    for device in &mut devices {
        device.note_written(to, bytes as u64, true);
    }
    // Zeros are there already.
    let is_zero = value == T::default();
    let changes = |device: &MutexGuard<'_, Device>| {
        device.computes || device.keeps(to) && (!is_zero || device.is_written(to))
    };
    let changes = devices.iter().all(changes);
    if changes {
        devices
            .iter_mut()
            .for_each(|device| device.mark_written(to));
    }
    match devices.as_mut_slice() {
        _ if count == 0 || !changes => {}
        [device] if stream.is_some() => device.execute(move |device| {
            device.check_live(&[to], bytes as u64)?;
            fill();
            Ok(())
        }),
        devices => {
            devices.iter_mut().for_each(|device| device.finish());
            fill();
        }
    }
    Ok(())
}

/// Sets bytes.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> u32 {
    answer(|| fill(to, value, count, None))
}

/// Sets bytes, on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) -> u32 {
    answer_at_once(|| fill(to, value, count, Some(stream)))
}

/// Sets 16-bit words.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16_v2(to: u64, value: u16, count: usize) -> u32 {
    answer(|| fill(to, value, count, None))
}

/// Sets 16-bit words, on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) -> u32 {
    answer_at_once(|| fill(to, value, count, Some(stream)))
}

/// Sets 32-bit words.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) -> u32 {
    answer(|| fill(to, value, count, None))
}

/// Sets 32-bit words, on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) -> u32 {
    answer_at_once(|| fill(to, value, count, Some(stream)))
}
