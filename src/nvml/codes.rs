//! NVML's return codes that have a meaning here.

/// A value, or NVML's return code.
pub(crate) type Field<T> = Result<T, u32>;

pub(crate) const UNINITIALIZED: u32 = 1;
pub(crate) const NOT_SUPPORTED: u32 = 3;
pub(crate) const NO_PERMISSION: u32 = 4;
pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
pub(crate) const LIBRARY_NOT_FOUND: u32 = 12;
pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;
pub(crate) const GPU_IS_LOST: u32 = 15;
pub(crate) const RESET_REQUIRED: u32 = 16;
pub(crate) const NO_DATA: u32 = 21;
