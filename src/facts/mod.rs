//! NVIDIA's numbers, their meaning and their remedies, for [errors](crate::error) and for the
//! [environment checker](crate::environment).
//!
//! The lookup of an unlisted number is `None`; the caller then shows the number itself.

mod entries;
mod lookup;
mod statuses;
mod tables;
mod version;

pub(crate) use entries::{Status, Weight, XidAction};
pub(crate) use lookup::{
    clock_reasons, cuda, cuda_of_ptx, driver_of_cuda, floor_of_major, nvml,
    reports_processes_wrongly, worst_clock_reason, xid,
};
pub(crate) use statuses::CUDA;
pub(crate) use tables::{CUDNN_FLOORS, DEBUGGING_VARIABLES};
pub(crate) use version::{Release, Version};
