//! The passes on CUDA, by kernels of this crate.

#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
pub use enabled::{Engine, IS_BUILT};

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub use disabled::{Engine, IS_BUILT};
