use candle_core::{CudaDevice, CudaStorage, DType, Result, Tensor};

use crate::kernel::{Kernel, Plan, no_kernels};

pub fn run<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    _: &K,
    _: &CudaDevice,
    _: &[Tensor],
    _: &Plan,
) -> Result<Vec<Tensor>> {
    Err(no_kernels(K::NAME))
}

pub fn unread(_: &CudaDevice, _: DType) -> Result<CudaStorage> {
    Err(no_kernels("graph"))
}
