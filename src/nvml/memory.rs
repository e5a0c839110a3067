//! A GPU's memory: how much, and what of it is worn out.

use std::ffi::c_uint;
use std::mem::size_of;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::{nvmlMemory_t, nvmlMemory_v2_t};

use super::library::read;
use super::{Device, Field, GPU_IS_LOST, INSUFFICIENT_SIZE, RESET_REQUIRED, UNINITIALIZED};

const BY_SINGLE_BIT_ERRORS: u32 = 0;
const BY_DOUBLE_BIT_ERRORS: u32 = 1;

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) free: u64,
}

/// Rows of memory that spare ones stand in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remapped {
    pub(crate) uncorrectable: u32,
    pub(crate) pending: bool,
    pub(crate) failed: bool,
}

impl Device {
    /// By the newer call, which counts what the driver keeps apart, and by the older one on drivers without it.
    pub(crate) fn memory(&self) -> Field<Memory> {
        match self.memory_without_reserve() {
            // No other call would do better.
            Err(code @ (UNINITIALIZED | GPU_IS_LOST | RESET_REQUIRED)) => Err(code),
            Err(_) => self.memory_with_reserve(),
            memory => memory,
        }
    }

    /// What the driver keeps for itself is not counted as used.
    fn memory_without_reserve(&self) -> Field<Memory> {
        let empty = nvmlMemory_v2_t {
            version: size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        let function = &self.functions().nvmlDeviceGetMemoryInfo_v2;
        // SAFETY: the handle is one of this session, and the place, whose version says its size, outlives the call.
        let memory = read(function, empty, |call, place| unsafe {
            call(self.handle, place)
        })?;
        Ok(Memory {
            total: memory.total,
            used: memory.used,
            free: memory.free,
        })
    }

    fn memory_with_reserve(&self) -> Field<Memory> {
        let empty = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let function = &self.functions().nvmlDeviceGetMemoryInfo;
        // SAFETY: the handle is one of this session, and the place for the value outlives the call.
        let memory = read(function, empty, |call, place| unsafe {
            call(self.handle, place)
        })?;
        Ok(Memory {
            total: memory.total,
            used: memory.used,
            free: memory.free,
        })
    }

    /// Retired pages, by double bit errors and by many single ones. Counts alone: without room for addresses the call says how many
    /// there are.
    pub(crate) fn retired(&self) -> Field<(u32, u32)> {
        let count = |cause| {
            let function = &self.functions().nvmlDeviceGetRetiredPages;
            let mut counted = 0;
            // SAFETY: the place for the count outlives the call, and a count of 0 says that there is no room for addresses.
            let outcome = read(function, (), |call, ()| unsafe {
                call(self.handle, cause, &mut counted, null_mut())
            });
            match outcome {
                Ok(()) | Err(INSUFFICIENT_SIZE) => Ok(counted),
                Err(code) => Err(code),
            }
        };
        Ok((count(BY_DOUBLE_BIT_ERRORS)?, count(BY_SINGLE_BIT_ERRORS)?))
    }

    pub(crate) fn remapped(&self) -> Field<Remapped> {
        let function = &self.functions().nvmlDeviceGetRemappedRows;
        // SAFETY: the handle is one of this session, and the places for all four values outlive the call.
        let rows = read(
            function,
            [0; 4],
            |call, [corrected, uncorrected, pending, failed]| unsafe {
                call(self.handle, corrected, uncorrected, pending, failed)
            },
        );
        rows.map(|[_, uncorrectable, pending, failed]| Remapped {
            uncorrectable,
            pending: pending != 0,
            failed: failed != 0,
        })
    }
}
