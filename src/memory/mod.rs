//! The memory of a device: counting, limiting, growing, and recovering after it ran out.

mod allocator;
mod counters;
mod cuda;
mod device;
mod host;
mod kept;
mod limit;
mod planning;
mod stats;

pub(crate) use crate::environment::memory::SystemMemory;
pub use allocator::TrackingAllocator;
pub use counters::PEAK_ERROR;
pub(crate) use cuda::unmask;
pub use cuda::{CudaMemoryBuilder, recover};
#[cfg(feature = "cuda")]
pub(crate) use cuda::{PageLocked, drain, while_dropping};
pub use device::{DeviceMemory, PeakScope};
pub use host::HostMemoryBuilder;
pub use limit::{AUTO_FRACTION, DEVICE_AUTO_FRACTION, Growth, Limit};
pub(crate) use stats::bytes_text;
pub use stats::{Enforcement, MemoryStats, OverLimit};
