//! NVIDIA's numbers, their meaning and their remedies, for errors, the monitor and the environment checker. Each table names its source and
//! the date on which it was read.

mod events;
mod releases;
mod statuses;
mod table;
mod version;

pub use events::{XidAction, clock_reasons, unknown_clock_reasons, xid};
pub use releases::{
    cuda_of_ptx, driver_of_cuda, floor_of_cudnn, floor_of_major, releases,
    reports_processes_wrongly,
};
pub use statuses::{Status, cuda, cuda_statuses, nvml};
pub use table::table;
pub use version::Version;
