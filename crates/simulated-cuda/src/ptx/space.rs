//! The address spaces that a warp sees, and the check of every access.

use super::globals::Globals;
use super::kernel::{Fault, Memory, Param};
use super::registers::LANES;
use std::ops::Range;

/// The region of an instruction's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Global memory, or whatever a tagged address names.
    Generic,
    /// Offsets into the block's shared memory.
    Shared,
    /// Offsets into the thread's own memory.
    Local,
    /// Addresses from [`argument_address`], in the kernel's arguments, which are read-only.
    Argument,
}

/// Marks a generic address that is an offset into shared memory. Host addresses are below 2⁴⁷.
pub const SHARED_TAG: u64 = 1 << 60;
/// Marks a generic address that is an offset into local memory.
pub const LOCAL_TAG: u64 = 1 << 61;

/// The distance between the addresses of two parameters. It exceeds the size of all parameters of a kernel, so that an access beyond
/// one does not reach another.
const ARGUMENT_STEP: u64 = 1 << 16;

/// The address of a kernel's parameter. It fits into 32 bits and is aligned like the parameter.
pub fn argument_address(number: usize, param: Param) -> u64 {
    number as u64 * ARGUMENT_STEP + param.offset as u64
}

/// Number of recently used allocations that are cached, by instruction.
pub const SITES: usize = 64;

/// The memory that a warp sees.
pub struct Space<'a> {
    pub memory: &'a dyn Memory,
    /// The module's own variables.
    pub globals: &'a Globals,
    pub params: &'a [Param],
    pub arguments: &'a [u8],
    pub shared: &'a mut [u8],
    /// The local memory of the warp's lanes, one after the other.
    pub local: &'a mut [u8],
    /// The allocation that an instruction accessed last.
    pub recent: &'a mut [Found; SITES],
    /// Bytes of global memory that were accessed, each as often as it was.
    pub accessed: &'a mut u64,
}

/// An allocation, in the kernel's addresses, and the distance to the host's.
#[derive(Clone, Debug, Default)]
pub struct Found {
    range: Range<u64>,
    distance: u64,
}

impl Space<'_> {
    /// The text at the address of a module's variable.
    pub fn text(&self, address: u64) -> String {
        self.globals.text(address)
    }

    /// The host's address of these bytes, if they are in one allocation; `site` is the instruction's number.
    #[inline(always)]
    fn host(&mut self, address: u64, size: u64, site: usize) -> Option<u64> {
        let Found { range, distance } = &self.recent[site % SITES];
        match address >= range.start && address.wrapping_add(size) <= range.end {
            true => Some(address.wrapping_add(*distance)),
            false => self.find(address, size, site),
        }
    }

    #[cold]
    fn find(&mut self, address: u64, size: u64, site: usize) -> Option<u64> {
        let end = address.checked_add(size)?;
        let globals = Some(self.globals.range()).filter(|range| range.contains(&address));
        let (range, distance) = match globals {
            Some(range) => (range, 0),
            None => self.memory.place(address)?,
        };
        if !range.contains(&address) || end > range.end {
            return None;
        }
        self.recent[site % SITES] = Found { range, distance };
        Some(address.wrapping_add(distance))
    }

    /// The host's pointer to a number of bytes of one parameter. Nothing is written through it, because no store decodes to this region.
    fn argument(&self, address: u64, size: usize) -> Option<*mut u8> {
        let param = self.params.get((address / ARGUMENT_STEP) as usize)?;
        let start = (address % ARGUMENT_STEP) as usize;
        let inside = param.offset <= start && start + size <= param.offset + param.size;
        let place = self.arguments.get(start..start + size)?;
        inside.then(|| place.as_ptr().cast_mut())
    }

    /// The host's pointer for one lane's access of `size` bytes.
    #[inline(always)]
    pub fn resolve(
        &mut self,
        region: Region,
        address: u64,
        size: usize,
        lane: usize,
        site: usize,
    ) -> Result<*mut u8, Fault> {
        if address & (size as u64 - 1) != 0 {
            return Err(Fault::MisalignedAddress(address));
        }
        if region == Region::Generic && address < SHARED_TAG {
            return match self.host(address, size as u64, site) {
                Some(place) => {
                    *self.accessed += size as u64;
                    Ok(place as *mut u8)
                }
                None => Err(Fault::IllegalAddress(address)),
            };
        }
        if region == Region::Argument {
            let place = self.argument(address, size);
            return place.ok_or(Fault::IllegalAddress(address));
        }
        let offset = (address & !(SHARED_TAG | LOCAL_TAG)) as usize;
        let place = if region == Region::Shared
            || (region == Region::Generic && address & SHARED_TAG != 0)
        {
            offset
                .checked_add(size)
                .and_then(|end| self.shared.get_mut(offset..end))
        } else {
            let share = self.local.len() / LANES;
            let mine = &mut self.local[lane * share..(lane + 1) * share];
            offset
                .checked_add(size)
                .and_then(|end| mine.get_mut(offset..end))
        };
        place
            .map(<[u8]>::as_mut_ptr)
            .ok_or(Fault::IllegalAddress(address))
    }

    /// The host's pointer to `bytes` consecutive bytes of global or shared memory that start at a multiple of `align`, if they are in one
    /// allocation. On `None` the caller accesses them lane by lane, which finds the fault.
    #[inline(always)]
    pub fn resolve_run(
        &mut self,
        region: Region,
        address: u64,
        bytes: usize,
        align: usize,
        site: usize,
    ) -> Option<*mut u8> {
        if address & (align as u64 - 1) != 0 {
            return None;
        }
        match region {
            Region::Generic if address < SHARED_TAG => {
                let place = self.host(address, bytes as u64, site)?;
                *self.accessed += bytes as u64;
                Some(place as *mut u8)
            }
            Region::Shared => {
                let start = usize::try_from(address).ok()?;
                self.shared
                    .get_mut(start..start.checked_add(bytes)?)
                    .map(<[u8]>::as_mut_ptr)
            }
            _ => None,
        }
    }
}
