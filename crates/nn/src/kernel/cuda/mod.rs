//! Kernels on CUDA. Without the feature `cuda` there are none.

#[cfg(not(feature = "cuda"))]
mod any;
#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launches kernels")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub use any::CudaKernel;
#[cfg(not(feature = "cuda"))]
pub use disabled::{put_product, run, unread};
#[cfg(feature = "cuda")]
pub(crate) use enabled::module;
#[cfg(feature = "cuda")]
pub use enabled::{
    Argument, CudaKernel, Launch, Module, Turn, add_to_rows, copied, each_row, ggml_rows,
    losses_of_rows, multiply, nf4_rows, product_of, put_product, regular, rotate_both, run, scale,
    sums_by_row, unread,
};
