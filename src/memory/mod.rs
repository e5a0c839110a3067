//! How much memory there is, who uses it, who may.

mod allocator;
mod backing;
mod counters;
mod cuda;
mod device;
mod host;
mod limit;
mod scope;
mod stats;
mod system;

pub use allocator::TrackingAllocator;
pub use cuda::{CudaMemoryBuilder, Growth};
pub(crate) use cuda::{recover, settle, unmask};
pub use device::DeviceMemory;
pub use host::HostMemoryBuilder;
pub use limit::{AUTO_FRACTION, DEVICE_AUTO_FRACTION, Limit};
pub use scope::PeakScope;
pub(crate) use stats::Bytes;
pub use stats::{Enforcement, MemoryStats, OverLimit};
pub(crate) use system::SystemMemory;

/// How far a peak of host memory can be from the truth, in bytes (512 KiB): 64 counters each hold back less than 8 KiB.
pub const PEAK_ERROR: u64 = 512 * 1024;
