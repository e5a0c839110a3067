//! The memory of a device: counting, limiting, growing, and recovering after it ran out.

mod allocator;
mod ambient;
mod counters;
mod cuda;
mod device;
mod host;
mod limit;
mod planning;
mod stats;
mod stopwatch;
mod system;
mod watch;

pub use allocator::TrackingAllocator;
pub(crate) use ambient::{ambient, within};
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
pub(crate) use stopwatch::Stopwatch;
pub(crate) use system::SystemMemory;
#[cfg(feature = "layers")]
pub(crate) use watch::{HostEvent, unwatch, watch};
