//! CUDA numbers devices in an order of its own, fastest first unless told otherwise, and shows those alone that
//! `CUDA_VISIBLE_DEVICES` lets through; NVML goes by the PCI bus. Their UUIDs are the same.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
pub(super) use enabled::uuids;

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub(super) use disabled::uuids;
