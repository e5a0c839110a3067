//! CUDA's order of the GPUs. By default CUDA numbers the fastest first and hides those that `CUDA_VISIBLE_DEVICES` leaves out; NVML
//! orders by PCI bus. UUIDs are the same in both.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
pub(super) use enabled::uuids;

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub(super) use disabled::uuids;
