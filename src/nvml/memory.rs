use std::ptr::null_mut;

use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper_sys::bindings::nvmlMemory_t;

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

/// Rows of memory that were replaced by spare rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remapped {
    pub(crate) uncorrectable: u32,
    pub(crate) pending: bool,
    pub(crate) failed: bool,
}

impl Device {
    /// By the newer call, which does not count the driver's own reserve as used, or by the older call on drivers that lack it.
    pub(crate) fn memory(&self) -> Field<Memory> {
        let newer = self.ask(|gpu| {
            gpu.memory_info().map(|memory| Memory {
                total: memory.total,
                used: memory.used,
                free: memory.free,
            })
        });
        match newer {
            // The older call would fail as well.
            Err(code @ (UNINITIALIZED | GPU_IS_LOST | RESET_REQUIRED)) => Err(code),
            Err(_) => self.memory_with_reserve(),
            memory => memory,
        }
    }

    fn memory_with_reserve(&self) -> Field<Memory> {
        let empty = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let function = &self.functions().nvmlDeviceGetMemoryInfo;
        // SAFETY: the handle belongs to this session; the place outlives the call.
        let memory = self.call(function, empty, |call, device, memory| unsafe {
            call(device, memory)
        })?;
        Ok(Memory {
            total: memory.total,
            used: memory.used,
            free: memory.free,
        })
    }

    /// The number of pages retired because of double bit errors, and because of many single bit errors.
    pub(crate) fn retired(&self) -> Field<(u32, u32)> {
        let count = |cause| {
            let function = &self.functions().nvmlDeviceGetRetiredPages;
            let mut count = 0;
            // SAFETY: the handle belongs to this session; the count of 0 says that there is no room for addresses.
            let outcome = self.call(function, (), |call, device, ()| unsafe {
                call(device, cause, &mut count, null_mut())
            });
            match outcome {
                Ok(()) | Err(INSUFFICIENT_SIZE) => Ok(count),
                Err(code) => Err(code),
            }
        };
        Ok((count(BY_DOUBLE_BIT_ERRORS)?, count(BY_SINGLE_BIT_ERRORS)?))
    }

    pub(crate) fn remapped(&self) -> Field<Remapped> {
        let function = &self.functions().nvmlDeviceGetRemappedRows;
        // SAFETY: the handle belongs to this session; all four places outlive the call.
        let rows = self.call(function, [0; 4], |call, device, [a, b, c, d]| unsafe {
            call(device, a, b, c, d)
        });
        rows.map(|[_, uncorrectable, pending, failed]| Remapped {
            uncorrectable,
            pending: pending != 0,
            failed: failed != 0,
        })
    }

    /// Uncorrected memory errors since the driver was loaded, or in the GPU's life.
    pub(crate) fn uncorrected(&self, counter: EccCounter) -> Field<u64> {
        self.ask(|gpu| gpu.total_ecc_errors(MemoryError::Uncorrected, counter))
    }
}
