use std::sync::Arc;

use crate::facts::Status;

/// The device's context is lost: every later call on the device fails, and only a new process can use it again.
///
/// It is never retried. Results in host memory can still be saved: save them, report, and shut the process down cleanly. Dropping device
/// handles after a sticky fault can panic inside `cudarc`.
#[derive(Debug, Clone)]
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
