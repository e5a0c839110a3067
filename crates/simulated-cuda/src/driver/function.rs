//! Attributes and occupancy of kernels. Numbers of registers and the like are made up, because nothing is compiled.

use super::current;
use crate::card::Card;
use crate::handle::Kind;
use crate::simulator::of_handle;
use crate::status::{Outcome, Status, answer, store, store_if_wanted};

const BLOCKS_PER_MULTIPROCESSOR: i32 = 32;
/// The shared memory of a block without opting in.
const SHARED_DEFAULT: i32 = 48 << 10;
const THREADS_PER_BLOCK: i32 = 1024;

fn check(function: u64) -> Outcome {
    let (device, serial) = of_handle(function, Kind::Function)?;
    device
        .objects
        .functions
        .get(&serial)
        .map(|_| ())
        .ok_or(Status::INVALID_HANDLE)
}

/// An attribute of a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(to: *mut i32, attribute: u32, function: u64) -> u32 {
    answer(|| {
        let (device, serial) = of_handle(function, Kind::Function)?;
        let known = device
            .objects
            .functions
            .get(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        let default = match attribute {
            0 => THREADS_PER_BLOCK,
            1..=3 | 7 => 0,
            4 => 32,
            5 | 6 => 90,
            8 => SHARED_DEFAULT,
            9 => -1,
            10..=16 => 0,
            _ => return Err(Status::INVALID_VALUE),
        };
        // SAFETY: the caller passes a place for one number.
        unsafe { store(to, *known.attributes.get(&attribute).unwrap_or(&default)) }
    })
}

/// Sets an attribute of a kernel, which is stored and has no other effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: u64, attribute: u32, value: i32) -> u32 {
    answer(|| {
        let (mut device, serial) = of_handle(function, Kind::Function)?;
        device.faults.check()?;
        let known = device
            .objects
            .functions
            .get_mut(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        if attribute == 8
            && usize::try_from(value).map_or(true, |bytes| {
                bytes > Card::get().shared_per_block() as usize
            })
        {
            return Err(Status::INVALID_VALUE);
        }
        known.attributes.insert(attribute, value);
        Ok(())
    })
}

/// Sets a kernel's preferred division of cache and shared memory, without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: u64, _config: u32) -> u32 {
    answer(|| check(function))
}

/// The number of blocks that fit on a multiprocessor, from their threads and shared memory.
fn resident(block: i32, shared: usize) -> Outcome<i32> {
    if !(1..=THREADS_PER_BLOCK).contains(&block) || shared > Card::get().shared_per_block() as usize
    {
        return Err(Status::INVALID_VALUE);
    }
    let by_shared = Card::get().attribute(81) as usize / (shared + 1024);
    Ok((Card::get().attribute(39) / block)
        .min(BLOCKS_PER_MULTIPROCESSOR)
        .min(by_shared as i32))
}

/// The number of a kernel's blocks that fit on a multiprocessor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut i32,
    function: u64,
    block: i32,
    shared: usize,
) -> u32 {
    // SAFETY: the caller passes a place for one number.
    answer(|| unsafe { store_resident(blocks, function, block, shared) })
}

/// # Safety
/// `blocks` is null or a place for one number.
unsafe fn store_resident(blocks: *mut i32, function: u64, block: i32, shared: usize) -> Outcome {
    drop(current::sound_device()?);
    check(function)?;
    // SAFETY: by contract.
    unsafe { store(blocks, resident(block, shared)?) }
}

/// The number of a kernel's blocks that fit on a multiprocessor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    function: u64,
    block: i32,
    shared: usize,
    _flags: u32,
) -> u32 {
    // SAFETY: the same contract.
    answer(|| unsafe { store_resident(blocks, function, block, shared) })
}

/// The block size that fills a device, and the number of blocks for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    function: u64,
    shared_of: Option<extern "C" fn(i32) -> usize>,
    shared: usize,
    limit: i32,
) -> u32 {
    // SAFETY: the caller passes places for one number each, or null.
    answer(|| unsafe { store_potential([grid, block], function, shared_of, shared, limit) })
}

/// # Safety
/// `places` are null or for one number each.
unsafe fn store_potential(
    [grid, block]: [*mut i32; 2],
    function: u64,
    shared_of: Option<extern "C" fn(i32) -> usize>,
    shared: usize,
    limit: i32,
) -> Outcome {
    drop(current::sound_device()?);
    check(function)?;
    let size = if limit > 0 {
        limit.min(THREADS_PER_BLOCK)
    } else {
        THREADS_PER_BLOCK
    };
    let bytes = shared_of.map_or(shared, |shared_of| shared_of(size));
    // SAFETY: by contract.
    unsafe {
        store_if_wanted(grid, Card::get().attribute(16) * resident(size, bytes)?);
        store_if_wanted(block, size);
    }
    Ok(())
}

/// The block size that fills a device, and the number of blocks for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    function: u64,
    shared_of: Option<extern "C" fn(i32) -> usize>,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> u32 {
    // SAFETY: the same contract.
    answer(|| unsafe { store_potential([grid, block], function, shared_of, shared, limit) })
}

/// The shared memory available to each of a number of blocks on one multiprocessor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: u64,
    blocks: i32,
    _block: i32,
) -> u32 {
    answer(|| {
        check(function)?;
        let blocks = usize::try_from(blocks)
            .ok()
            .filter(|&blocks| blocks > 0)
            .ok_or(Status::INVALID_VALUE)?;
        let share = (Card::get().attribute(81) as usize / blocks).saturating_sub(1024);
        // SAFETY: the caller passes a place for one number.
        unsafe { store(bytes, share.min(Card::get().shared_per_block() as usize)) }
    })
}
