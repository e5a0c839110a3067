//! The memory of a device: counting, limiting, growing, and recovering after it ran out.

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
pub(crate) use limit::bytes_text;
pub use limit::{AUTO_FRACTION, DEVICE_AUTO_FRACTION, Enforcement, Growth, Limit, MemoryStats};
