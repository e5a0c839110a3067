//! Without the feature `cuda` there are no kernels, and every computation will do.

use candle_core::{CudaDevice, Result, Tensor};

use crate::kernel::{Kernel, Plan, no_kernels};

/// A kernel that also runs on CUDA.
pub trait CudaKernel<const IN: usize, const OUT: usize> {}

impl<K, const IN: usize, const OUT: usize> CudaKernel<IN, OUT> for K {}

pub fn run<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    _: &K,
    _: &CudaDevice,
    _: &[Tensor],
    _: &Plan,
) -> Result<Vec<Tensor>> {
    Err(no_kernels(K::NAME))
}
