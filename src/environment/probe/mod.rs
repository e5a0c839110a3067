//! What is there: each file looks at one subject and judges nothing.

pub(super) mod driver;
pub(super) mod kernel;
pub(super) mod libraries;
pub(super) mod nvml;
pub(super) mod ptx;
