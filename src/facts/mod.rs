//! NVIDIA's numbers, their meaning and their remedies, for [errors](crate::error), the [monitor](crate::monitor) and the
//! [environment checker](crate::environment). Each table names its source and the date on which it was read.

mod events;
mod releases;
mod statuses;
mod table;
mod version;

pub(crate) use events::{Weight, XidAction, clock_reasons, unknown_clock_reasons, xid};
pub(crate) use releases::{
    cuda_of_ptx, driver_of_cuda, floor_of_cudnn, floor_of_major, reports_processes_wrongly,
};
pub(crate) use statuses::{CUDA, Status, cuda, nvml};
pub(crate) use table::table;
pub(crate) use version::Version;
