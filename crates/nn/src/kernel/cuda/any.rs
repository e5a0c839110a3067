//! Without the feature `cuda` every type and every computation will do.

/// A type that CUDA kernels read and write.
pub trait CudaElement {}

impl<T> CudaElement for T {}

/// A kernel that also runs on CUDA.
pub trait CudaKernel<const IN: usize, const OUT: usize> {}

impl<K, const IN: usize, const OUT: usize> CudaKernel<IN, OUT> for K {}
