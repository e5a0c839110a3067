//! The memory of a device: counting, limiting, growing, and recovering after it ran out.

mod allocator;
mod cuda;
mod device;
mod host;
mod limit;
mod planning;

pub(crate) use crate::environment::memory::SystemMemory;
pub use allocator::{PEAK_ERROR, TrackingAllocator};
pub use cuda::{CudaMemoryBuilder, recover};
pub(crate) use cuda::{Mark, unmask};
#[cfg(feature = "cuda")]
pub(crate) use cuda::{PageLocked, drain, while_dropping};
pub use device::{DeviceMemory, PeakScope};
pub use host::HostMemoryBuilder;
pub(crate) use limit::bytes_text;
pub use limit::{
    AUTO_FRACTION, DEVICE_AUTO_FRACTION, Enforcement, Growth, Limit, MemoryStats, OverLimit,
};
