//! The kernels in this build.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(super) use disabled::kernels;
#[cfg(feature = "cuda")]
pub(super) use enabled::kernels;
