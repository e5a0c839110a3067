//! Settings of a context, which are stored and have no other effect.

use super::current;
use crate::status::{Status, answer, store, store_if_wanted};

/// `CU_LIMIT_…` 0 to 6: stack, printf buffer, heap, and limits of device-side launches and of the L2 cache.
const DEFAULT_LIMITS: [u64; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

/// The flags of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetFlags(flags: *mut u32) -> u32 {
    answer(|| {
        let device = current::device()?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(flags, device.objects.settings.flags) }
    })
}

/// Sets the flags of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(flags: u32) -> u32 {
    answer(|| {
        current::device()?.objects.settings.flags = flags;
        Ok(())
    })
}

/// A limit of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: u32) -> u32 {
    answer(|| {
        let device = current::device()?;
        let default = DEFAULT_LIMITS
            .get(limit as usize)
            .ok_or(Status::UNSUPPORTED_LIMIT)?;
        let set = device
            .objects
            .settings
            .limits
            .get(&limit)
            .unwrap_or(default);
        // SAFETY: the caller passes a place for one number.
        unsafe { store(value, *set as usize) }
    })
}

/// Sets a limit of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> u32 {
    answer(|| {
        let mut device = current::device()?;
        DEFAULT_LIMITS
            .get(limit as usize)
            .ok_or(Status::UNSUPPORTED_LIMIT)?;
        device.objects.settings.limits.insert(limit, value as u64);
        Ok(())
    })
}

/// The preferred division of cache and shared memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut u32) -> u32 {
    answer(|| {
        let device = current::device()?;
        // SAFETY: the caller passes a place for one number.
        unsafe { store(config, device.objects.settings.cache_config) }
    })
}

/// Sets the preferred division of cache and shared memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(config: u32) -> u32 {
    answer(|| {
        current::device()?.objects.settings.cache_config = config;
        Ok(())
    })
}

/// The range of stream priorities, the same as on current devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> u32 {
    answer(|| {
        drop(current::device()?);
        // SAFETY: null, or places for one number each.
        unsafe {
            store_if_wanted(least, 0);
            store_if_wanted(greatest, -5);
        }
        Ok(())
    })
}
