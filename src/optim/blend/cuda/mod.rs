//! The operations on CUDA, by kernels of this crate.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
pub(super) use enabled::{IS_BUILT, blend, scale, takes};

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub(super) use disabled::{IS_BUILT, blend, scale, takes};
