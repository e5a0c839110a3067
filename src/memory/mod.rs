//! The memory of a device: counting, limiting, growing, and recovering after it ran out.
//!
//! | | host | GPU |
//! |---|---|---|
//! | open | [`DeviceMemory::host`] | [`DeviceMemory::cuda`] |
//! | counts | live bytes of the process, by a [`TrackingAllocator`] | tensors of a memory pool, and what the pool holds |
//! | limit | [soft](Enforcement::Soft): trainers cut smaller micro-batches | [hard](Enforcement::Hard) where the driver can refuse, else soft |
//! | freed memory | is kept for reuse, by glibc up to 32 MiB a block | is kept by the pool, as [`Growth`] says |
//!
//! # Guarantees
//! - **A device has one limit in a process.** All handles share it. Opening the device with other settings is an error, and
//!   [`DeviceMemory::set_limit`] changes it for all or, with an error, not at all.
//! - **What is not counted is `None`,** never 0, as without the tracking allocator.
//! - **A peak is that of its scope.** Each [`PeakScope`] has the highest use since it began, however scopes nest and overlap; on the host within
//!   [`PEAK_ERROR`] bytes.
//! - **Reading costs a training step nothing.** [`DeviceMemory::reading`] and [`DeviceMemory::in_use`] never wait for the device.
//!   [`DeviceMemory::stats`] asks the driver or reads files.
//! - **[`recover`] makes a device ready for the next attempt** once the failed work was dropped, and finds a lost device.

#[allow(unsafe_code, reason = "is a global allocator")]
mod allocator;
mod cuda;
mod device;
#[allow(unsafe_code, reason = "calls `mallopt`")]
mod host;
mod limit;

pub(crate) use crate::environment::system::SystemMemory;
pub use allocator::{PEAK_ERROR, TrackingAllocator};
pub use cuda::{CudaMemoryBuilder, recover};
#[cfg(feature = "cuda")]
pub(crate) use cuda::{Handle, PageLocked, drain, while_dropping};
pub(crate) use cuda::{Mark, unmask};
pub use device::{DeviceMemory, PeakScope};
pub use host::HostMemoryBuilder;
#[cfg(feature = "layers")]
pub(crate) use limit::bytes_text;
pub(crate) use limit::pool_bound;
pub use limit::{
    AUTO_FRACTION, DEVICE_AUTO_FRACTION, Enforcement, Growth, Limit, MemoryStats, library_reserve,
};
