use std::fmt;
use std::sync::Arc;

use super::rendering;
use crate::facts::Status;

/// The device's context is lost: every later call on the device fails, and only a new process can use it again.
///
/// It is never retried. Results in host memory can still be saved: save them, report, and shut the process down cleanly. Dropping device
/// handles after a sticky fault can panic inside `cudarc`.
///
/// ```
/// use candle_headroom::{Error, ErrorExt};
///
/// let error = candle_core::Error::msg("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"…\")");
/// let fault = error.device_fault().expect("a sticky code");
/// assert_eq!((fault.name, fault.code), ("CUDA_ERROR_ILLEGAL_ADDRESS", 700));
/// assert!(matches!(Error::from(error), Error::DeviceFault(_)));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DeviceFault {
    /// The status code's name, for example `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: &'static str,
    /// The status code's number, for example 700.
    pub code: u32,
    /// What the code means.
    pub cause: &'static str,
    /// What to do besides starting a new process.
    pub remedy: &'static str,
    pub(super) source: Option<Arc<candle_core::Error>>,
}

impl DeviceFault {
    pub(super) fn new(status: &'static Status) -> Self {
        Self {
            name: status.name,
            code: status.number,
            cause: status.cause,
            remedy: status.remedy,
            source: None,
        }
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        rendering::note(self);
        write!(
            f,
            "device fault {} ({}): {}; the device is lost to this process: save what is in host memory, start a new process, and {}",
            self.name, self.code, self.cause, self.remedy
        )
    }
}

impl std::error::Error for DeviceFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
