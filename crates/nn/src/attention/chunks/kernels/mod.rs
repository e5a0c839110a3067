//! What happens to a chunk of scores, by kernels on CUDA. Without the feature `cuda` there are none.

#[cfg(feature = "cuda")]
mod arguments;
#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
mod launch;

#[cfg(not(feature = "cuda"))]
pub use disabled::{differentiate, run_on, weights};
#[cfg(feature = "cuda")]
pub use enabled::{differentiate, run_on, weights};
