//! The library, and sessions with it.

use std::ffi::{CString, c_char, c_uint};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

use super::{Device, FUNCTION_NOT_FOUND, Field, text};
use crate::facts;

/// Where the driver puts it.
pub(crate) const NAMES: [&str; 2] = match cfg!(windows) {
    true => ["nvml.dll", "C:\\Windows\\System32\\nvml.dll"],
    false => ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"],
};

/// NVML's functions. Never unloaded, since other parts of the process may use it too.
pub(crate) struct Library {
    pub(super) functions: ManuallyDrop<NvmlLib>,
}

/// NVML at work; it ends when the last device of it is dropped.
pub(crate) struct Nvml {
    library: Arc<Library>,
    driver: Field<String>,
    /// Whether the newest calls for processes must not be made.
    pub(super) avoids_newest: bool,
}

/// Calls a function that writes one value.
pub(super) fn read<F: Copy, T>(
    function: &Result<F, libloading::Error>,
    mut place: T,
    call: impl FnOnce(F, &mut T) -> u32,
) -> Field<T> {
    let function = *function.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    match call(function, &mut place) {
        0 => Ok(place),
        code => Err(code),
    }
}

impl Library {
    /// Loads the first that is there; the error is what the loader says of the first.
    pub(crate) fn load<P: AsRef<Path>>(paths: &[P]) -> Result<Arc<Self>, String> {
        let mut reason = None;
        for path in paths {
            // SAFETY: loading runs the library's initialisers; NVML is made to be loaded at any time. Its functions have the signatures
            // of the bindings, since NVML never changes those of a name.
            match unsafe { NvmlLib::new(path.as_ref()) } {
                Ok(library) => {
                    return Ok(Arc::new(Self {
                        functions: ManuallyDrop::new(library),
                    }));
                }
                Err(error) => {
                    reason.get_or_insert_with(|| error.to_string());
                }
            }
        }
        Err(reason.unwrap_or_else(|| format!("{}: not found", NAMES[0])))
    }

    /// Begins a session.
    pub(crate) fn begin(self: &Arc<Self>) -> Field<Arc<Nvml>> {
        // SAFETY: it has no arguments, and may be called any number of times.
        read(&self.functions.nvmlInit_v2, (), |call, ()| unsafe {
            call()
        })?;
        let mut nvml = Nvml {
            library: Arc::clone(self),
            driver: Err(FUNCTION_NOT_FOUND),
            avoids_newest: false,
        };
        nvml.driver = nvml.ask_driver();
        let version = nvml.driver.as_ref().ok().and_then(|text| text.parse().ok());
        nvml.avoids_newest = version.is_some_and(facts::reports_processes_wrongly);
        Ok(Arc::new(nvml))
    }
}

impl Nvml {
    pub(super) fn functions(&self) -> &NvmlLib {
        &self.library.functions
    }

    fn ask_driver(&self) -> Field<String> {
        let function = &self.functions().nvmlSystemGetDriverVersion;
        // SAFETY: no more is written than the length that it is told.
        read(function, [0 as c_char; 96], |call, room| unsafe {
            call(room.as_mut_ptr(), room.len() as c_uint)
        })
        .map(|room| text(&room))
    }

    /// The version of the kernel module.
    pub(crate) fn driver(&self) -> Field<String> {
        self.driver.clone()
    }

    /// The newest CUDA that the driver supports, as 12040.
    pub(crate) fn cuda(&self) -> Field<i32> {
        let function = &self.functions().nvmlSystemGetCudaDriverVersion_v2;
        // SAFETY: the place for the number outlives the call.
        read(function, 0, |call, place| unsafe { call(place) })
    }

    /// How many GPUs there are.
    pub(crate) fn count(&self) -> Field<u32> {
        let function = &self.functions().nvmlDeviceGetCount_v2;
        // SAFETY: the place for the number outlives the call.
        read(function, 0, |call, place| unsafe { call(place) })
    }

    /// A GPU by its place in NVML's order.
    pub(crate) fn device(self: &Arc<Self>, index: u32) -> Field<Device> {
        let function = &self.functions().nvmlDeviceGetHandleByIndex_v2;
        let null: nvmlDevice_t = null_mut();
        // SAFETY: the place for the handle outlives the call.
        let handle = read(function, null, |call, place| unsafe { call(index, place) })?;
        Ok(Device::new(self, handle))
    }

    /// A GPU by its identity.
    pub(crate) fn device_by_uuid(self: &Arc<Self>, uuid: &str) -> Field<Device> {
        const INVALID_ARGUMENT: u32 = 2;
        let uuid = CString::new(uuid).map_err(|_| INVALID_ARGUMENT)?;
        let function = &self.functions().nvmlDeviceGetHandleByUUID;
        let null: nvmlDevice_t = null_mut();
        // SAFETY: the text and the place for the handle outlive the call.
        let handle = read(function, null, |call, place| unsafe {
            call(uuid.as_ptr(), place)
        })?;
        Ok(Device::new(self, handle))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it has no arguments, and ends what one call of `nvmlInit_v2` began. There is nothing to do where it fails.
        let _ = read(&self.functions().nvmlShutdown, (), |call, ()| unsafe {
            call()
        });
    }
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvml")
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}
