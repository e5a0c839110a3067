use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;

use crate::facts::Version;
use crate::patience::{self, LoadError};

/// A value, or NVML's return code.
pub type Field<T> = Result<T, u32>;

pub const UNINITIALIZED: u32 = 1;
pub const NOT_SUPPORTED: u32 = 3;
pub const NO_PERMISSION: u32 = 4;
pub(super) const INSUFFICIENT_SIZE: u32 = 7;
pub const DRIVER_NOT_LOADED: u32 = 9;
const LIBRARY_NOT_FOUND: u32 = 12;
pub const FUNCTION_NOT_FOUND: u32 = 13;
pub const GPU_IS_LOST: u32 = 15;
pub const RESET_REQUIRED: u32 = 16;
const NO_DATA: u32 = 21;

/// Where the driver installs NVML. On Windows by full path, because a name alone would be looked for in the program's folder first.
pub const NAMES: [&str; 2] = match cfg!(windows) {
    true => [
        "C:\\Windows\\System32\\nvml.dll",
        "C:\\Program Files\\NVIDIA Corporation\\NVSMI\\nvml.dll",
    ],
    false => ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"],
};

/// A library that is loaded for good.
#[derive(Debug)]
pub struct Library(PathBuf);

/// A session with NVML; it ends when the last of its devices is dropped.
#[derive(Debug)]
pub struct Nvml {
    pub(super) wrapper: ManuallyDrop<nvml_wrapper::Nvml>,
    /// The version of the kernel module.
    pub driver: Option<Version>,
}

/// The return code behind an error of the wrapper.
pub(super) fn return_code(error: NvmlError) -> u32 {
    match error {
        NvmlError::LibloadingError(_) => LIBRARY_NOT_FOUND,
        NvmlError::FailedToLoadSymbol(_) => FUNCTION_NOT_FOUND,
        NvmlError::Utf8Error(_) | NvmlError::NulError(_) => NO_DATA,
        error => error.into(),
    }
}

impl Library {
    /// Loads the first that exists, unless loading it hangs in another process for longer than `limit`. The error is about the first.
    ///
    /// # Safety
    /// The libraries must be NVML, or as sound to load and call.
    pub unsafe fn load<P: AsRef<Path>>(
        paths: &[P],
        limit: Duration,
    ) -> Result<Arc<Self>, LoadError> {
        let mut absent = None;
        for path in paths.iter().map(AsRef::as_ref) {
            // SAFETY: the caller vouches for the library.
            match unsafe { patience::load(path, limit) } {
                Ok(_) => return Ok(Arc::new(Self(path.to_owned()))),
                Err(error @ LoadError::Absent(_)) => absent = absent.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        let not_found = || LoadError::Absent(format!("{}: not found", NAMES[0]));
        Err(absent.unwrap_or_else(not_found))
    }

    /// Begins a session.
    pub fn begin(&self) -> Field<Arc<Nvml>> {
        let path = self.0.as_os_str();
        let wrapper = nvml_wrapper::Nvml::builder().lib_path(path).init();
        let wrapper = wrapper.map_err(return_code)?;
        let driver = wrapper.sys_driver_version().ok();
        Ok(Arc::new(Nvml {
            wrapper: ManuallyDrop::new(wrapper),
            driver: driver.and_then(|text| Version::parse(&text)),
        }))
    }
}

impl Nvml {
    /// Asks the wrapper's session.
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&nvml_wrapper::Nvml) -> Result<T, NvmlError>,
    ) -> Field<T> {
        question(&self.wrapper).map_err(return_code)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // The wrapper panics if the library has no such function.
        if self.wrapper.lib().nvmlShutdown.is_ok() {
            // SAFETY: dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.wrapper) };
        }
    }
}
