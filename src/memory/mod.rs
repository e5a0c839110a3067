//! The memory of a device: counting, limiting, growing, and recovering after it ran out.

mod allocator;
mod backing;
mod counters;
mod cuda;
mod device;
mod exhaustion;
mod host;
mod limit;
mod scope;
mod stats;
mod stopwatch;
mod system;
mod turn;

pub use allocator::TrackingAllocator;
pub use counters::PEAK_ERROR;
pub(crate) use cuda::unmask;
pub use cuda::{CudaMemoryBuilder, recover};
pub use device::DeviceMemory;
pub use host::HostMemoryBuilder;
pub use limit::{AUTO_FRACTION, DEVICE_AUTO_FRACTION, Growth, Limit};
pub use scope::PeakScope;
pub(crate) use stats::Bytes;
pub use stats::{Enforcement, MemoryStats, OverLimit};
pub(crate) use stopwatch::Stopwatch;
pub(crate) use system::SystemMemory;
