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
pub use disabled::{Away, Host, put_product, run, unread};
#[cfg(feature = "cuda")]
pub(crate) use enabled::module;
#[cfg(feature = "cuda")]
pub use enabled::{
    Argument, Away, CudaKernel, Host, Launch, Module, Turn, add_to_rows, copied, each_row,
    ggml_part, losses_of_rows, multiply, nf4_part, product_of, put_product, regular, rotate_both,
    run, scale, sums_by_row, unread,
};

/// Why a tensor stays on the device.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "nothing moves"))]
pub enum Stays {
    /// Pinned memory would exceed its limit.
    Limit,
    /// The host has no more to pin.
    Refused,
}

/// What has moved, or why it has not.
pub type OrStays<T> = std::result::Result<T, Stays>;
