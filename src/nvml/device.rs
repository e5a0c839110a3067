use std::ffi::c_ulonglong;
use std::fmt;
use std::sync::Arc;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

use super::library::return_code;
use super::{FUNCTION_NOT_FOUND, Field, Nvml};

/// A GPU. The handle is valid as long as the session, which lives as long as this value.
#[derive(Clone)]
pub(crate) struct Device {
    pub(super) nvml: Arc<Nvml>,
    handle: nvmlDevice_t,
}

// SAFETY: NVML may be called from any thread, and the handle is valid in the whole process.
unsafe impl Send for Device {}

impl Device {
    pub(super) fn new(nvml: &Arc<Nvml>, device: nvml_wrapper::Device<'_>) -> Self {
        Self {
            nvml: Arc::clone(nvml),
            // SAFETY: the handle is used together with its session alone.
            handle: unsafe { device.handle() },
        }
    }

    /// Asks the wrapper's device.
    pub(crate) fn ask<T>(
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

    /// Calls a function that fills in `value`.
    pub(super) fn call<F: Copy, T>(
        &self,
        function: &Result<F, libloading::Error>,
        mut value: T,
        call: impl FnOnce(F, nvmlDevice_t, &mut T) -> u32,
    ) -> Field<T> {
        let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
        match call(function, self.handle, &mut value) {
            0 => Ok(value),
            code => Err(code),
        }
    }

    /// The bits of NVML's clock event reasons, called throttle reasons before CUDA 12.2.
    pub(crate) fn clock_reasons(&self) -> Field<u64> {
        let functions = self.functions();
        type Reasons = unsafe extern "C" fn(nvmlDevice_t, *mut c_ulonglong) -> u32;
        let reasons = |function: &Result<Reasons, libloading::Error>| {
            // SAFETY: the handle belongs to this session; the place outlives the call.
            self.call(function, 0, |call, device, bits| unsafe {
                call(device, bits)
            })
        };
        reasons(&functions.nvmlDeviceGetCurrentClocksEventReasons)
            .or_else(|_| reasons(&functions.nvmlDeviceGetCurrentClocksThrottleReasons))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}
