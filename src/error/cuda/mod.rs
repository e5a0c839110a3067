//! The error types of NVIDIA's libraries as cudarc has them, where this build links it.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
pub(super) use enabled::status;

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub(super) use disabled::status;
