use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlMemory_t as Memory};

use super::library::{
    FUNCTION_NOT_FOUND, Field, GPU_IS_LOST, INSUFFICIENT_SIZE, Nvml, RESET_REQUIRED, UNINITIALIZED,
    return_code,
};

/// A GPU. The handle is valid as long as the session, which lives as long as this value.
#[derive(Debug, Clone)]
pub struct Device {
    pub(super) nvml: Arc<Nvml>,
    handle: nvmlDevice_t,
}

/// Rows of memory that were replaced by spare rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remapped {
    pub uncorrectable: u32,
    pub pending: bool,
    pub failed: bool,
}

// SAFETY: NVML may be called from any thread, and the handle is valid in the whole process.
unsafe impl Send for Device {}

impl Nvml {
    /// A GPU by its index in NVML's order.
    pub fn device(self: &Arc<Self>, index: u32) -> Field<Device> {
        Device::of(self, self.wrapper.device_by_index(index))
    }

    pub fn device_by_uuid(self: &Arc<Self>, uuid: &str) -> Field<Device> {
        Device::of(self, self.wrapper.device_by_uuid(uuid))
    }
}

impl Device {
    fn of(nvml: &Arc<Nvml>, device: Result<nvml_wrapper::Device<'_>, NvmlError>) -> Field<Self> {
        // SAFETY: the handle is used together with its session alone.
        let handle = unsafe { device.map_err(return_code)?.handle() };
        let nvml = Arc::clone(nvml);
        Ok(Self { nvml, handle })
    }

    /// Asks the wrapper's device.
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<T, NvmlError>,
    ) -> Field<T> {
        // SAFETY: the handle belongs to this session.
        let device = unsafe { nvml_wrapper::Device::new(self.handle, &self.nvml.wrapper) };
        question(&device).map_err(return_code)
    }

    pub(super) fn functions(&self) -> &NvmlLib {
        self.nvml.wrapper.lib()
    }

    /// Calls a function that the library may lack.
    pub(super) fn call<F: Copy>(
        &self,
        function: &Result<F, libloading::Error>,
        call: impl FnOnce(F, nvmlDevice_t) -> u32,
    ) -> Field<()> {
        let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
        match call(function, self.handle) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// What such a function writes into `place`.
    fn read<F: Copy, T>(
        &self,
        function: &Result<F, libloading::Error>,
        mut place: T,
        call: impl FnOnce(F, nvmlDevice_t, &mut T) -> u32,
    ) -> Field<T> {
        self.call(function, |function, gpu| call(function, gpu, &mut place))?;
        Ok(place)
    }

    /// The bits of NVML's clock event reasons, called throttle reasons before CUDA 12.2.
    pub fn clock_reasons(&self) -> Field<u64> {
        let functions = self.functions();
        let newer = &functions.nvmlDeviceGetCurrentClocksEventReasons;
        let older = &functions.nvmlDeviceGetCurrentClocksThrottleReasons;
        // SAFETY: the handle belongs to this session.
        let newer = self.read(newer, 0, |call, gpu, bits| unsafe { call(gpu, bits) });
        // SAFETY: as above.
        newer.or_else(|_| self.read(older, 0, |call, gpu, bits| unsafe { call(gpu, bits) }))
    }

    /// By the newer call, which does not count the driver's own reserve as used, or by the older call on drivers that lack it.
    pub fn memory(&self) -> Field<Memory> {
        let older = &self.functions().nvmlDeviceGetMemoryInfo;
        // SAFETY: the structure holds three numbers.
        let mut memory: Memory = unsafe { zeroed() };
        match self.ask(|gpu| gpu.memory_info()) {
            Ok(newer) => {
                (memory.total, memory.used, memory.free) = (newer.total, newer.used, newer.free)
            }
            // The older call would fail as well.
            Err(code @ (UNINITIALIZED | GPU_IS_LOST | RESET_REQUIRED)) => return Err(code),
            // SAFETY: the handle belongs to this session.
            Err(_) => self.call(older, |call, gpu| unsafe { call(gpu, &mut memory) })?,
        }
        Ok(memory)
    }

    /// Whether this GPU can access another one's memory, as `nvmlGpuP2PStatus_t`, in this way of `nvmlGpuP2PCapsIndex_t`.
    pub fn peer_status(&self, other: &Self, way: u32) -> Field<u32> {
        let function = &self.functions().nvmlDeviceGetP2PStatus;
        // SAFETY: both handles belong to sessions of the same library, which stay open.
        self.read(function, 0, |call, gpu, status| unsafe {
            call(gpu, other.handle, way, status)
        })
    }

    /// The number of pages that were retired because of memory errors.
    pub fn retired(&self) -> Field<u32> {
        let function = &self.functions().nvmlDeviceGetRetiredPages;
        let pages = |cause| {
            let mut count = 0;
            // SAFETY: the handle belongs to this session; the count of 0 says that there is no room for addresses.
            let outcome = self.call(function, |call, gpu| unsafe {
                call(gpu, cause, &mut count, null_mut())
            });
            match outcome {
                Ok(()) | Err(INSUFFICIENT_SIZE) => Ok(count),
                Err(code) => Err(code),
            }
        };
        // The causes: many single bit errors, and double bit errors.
        Ok(pages(0)?.saturating_add(pages(1)?))
    }

    pub fn remapped(&self) -> Field<Remapped> {
        let function = &self.functions().nvmlDeviceGetRemappedRows;
        let read = self.read(function, [0; 4], |call, gpu, places| {
            let [corrected, uncorrectable, pending, failed] = places;
            // SAFETY: the handle belongs to this session.
            unsafe { call(gpu, corrected, uncorrectable, pending, failed) }
        });
        let [_, uncorrectable, pending, failed] = read?;
        Ok(Remapped {
            uncorrectable,
            pending: pending != 0,
            failed: failed != 0,
        })
    }

    /// Uncorrected memory errors since the driver was loaded, or in the GPU's life.
    pub fn uncorrected(&self, counter: EccCounter) -> Field<u64> {
        self.ask(|gpu| gpu.total_ecc_errors(MemoryError::Uncorrected, counter))
    }
}
