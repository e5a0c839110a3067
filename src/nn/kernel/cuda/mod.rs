//! Kernels on CUDA. Without the feature `cuda` there are none.

#[cfg(feature = "cuda")]
mod activation;
#[cfg(feature = "cuda")]
mod cells;
#[cfg(feature = "cuda")]
mod cross_entropy;
#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod dropout;
#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
mod norm;
#[cfg(feature = "cuda")]
mod softmax;

#[cfg(not(feature = "cuda"))]
pub use disabled::{CudaElement, CudaKernel, run};
#[cfg(feature = "cuda")]
pub(in crate::nn) use enabled::module;
#[cfg(feature = "cuda")]
pub use enabled::{
    CudaElement, CudaKernel, Function, Module, each_element, each_row, function, run, smallest,
    view,
};
