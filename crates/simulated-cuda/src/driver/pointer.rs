//! Attributes of addresses.

use super::current;
use crate::handle::Kind;
use crate::simulator;
use crate::status::{Status, answer, not_modelled, store};

/// An attribute of an address in device memory or in pinned host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(to: *mut u64, attribute: u32, pointer: u64) -> u32 {
    answer(|| {
        let on_device = simulator::owner(pointer);
        let here = current::device()?.ordinal;
        let device = simulator::lock(on_device.unwrap_or(here)).ok_or(Status::INVALID_VALUE)?;
        let range = device
            .memory
            .allocation(pointer)
            .ok_or(Status::INVALID_VALUE)?;
        // SAFETY: the caller passes a place of the attribute's type.
        unsafe {
            match attribute {
                1 => store(to, device.handle(Kind::Context, 0)),
                2 => store(to.cast::<u32>(), if on_device.is_some() { 2 } else { 1 }),
                3 => store(to, pointer),
                4 if on_device.is_none() => store(to, pointer),
                4 => Err(Status::INVALID_VALUE),
                8 => store(to.cast::<u8>(), 0),
                9 => store(to.cast::<i32>(), device.ordinal as i32),
                11 => store(to, range.start),
                12 => store(to, range.end - range.start),
                13 => store(to.cast::<u8>(), 1),
                17 => {
                    let pool = device
                        .memory
                        .live
                        .get(&range.start)
                        .map_or(0, |live| live.pool);
                    store(
                        to,
                        if pool == 0 {
                            0
                        } else {
                            device.handle(Kind::Pool, pool)
                        },
                    )
                }
                _ => not_modelled(&format!("cuPointerGetAttribute {attribute}")),
            }
        }
    })
}

/// The allocation that contains an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut u64,
    bytes: *mut usize,
    pointer: u64,
) -> u32 {
    answer(|| {
        drop(current::sound_device()?);
        let device = simulator::owner(pointer)
            .and_then(simulator::lock)
            .ok_or(Status::NOT_FOUND)?;
        let range = device.memory.allocation(pointer).ok_or(Status::NOT_FOUND)?;
        // SAFETY: null, or places for one number each.
        unsafe {
            crate::status::store_if_wanted(start, range.start);
            crate::status::store_if_wanted(bytes, (range.end - range.start) as usize);
        }
        Ok(())
    })
}
