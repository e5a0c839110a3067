//! What is looked at. A probe reads and does not judge; each stands alone, and none can fail.

pub(super) mod driver;
pub(super) mod host;
pub(super) mod kernel;
pub(super) mod libraries;
pub(super) mod log;
pub(super) mod nvml;
pub(super) mod ptx;
pub(super) mod toolkit;
