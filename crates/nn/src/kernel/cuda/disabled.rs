use std::sync::Arc;

use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Tensor};

use super::OrStays;
use crate::kernel::storage::no_kernels;
use crate::kernel::{Kernel, Plan};

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

pub fn put_product(_: f64, _: bool, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<()> {
    Err(no_kernels("product"))
}

/// Pinned memory, which exists only with CUDA.
#[derive(Debug)]
pub enum Host {}

/// A tensor in pinned memory.
pub enum Away {}

impl Host {
    pub fn new(_: &CudaDevice) -> Result<Self> {
        Err(no_kernels("offload"))
    }

    pub fn is_of(&self, _: &CudaDevice) -> bool {
        match *self {}
    }

    pub fn pinned(&self) -> u64 {
        match *self {}
    }

    pub fn leave(self: &Arc<Self>, _: &Tensor, _: u64) -> Result<OrStays<Away>> {
        match **self {}
    }
}

impl Away {
    pub fn left(&mut self) -> Result<()> {
        match *self {}
    }

    pub fn depart(&mut self) -> Result<()> {
        match *self {}
    }

    pub fn arrive(&mut self, _: &Shape, _: bool) -> Result<Tensor> {
        match *self {}
    }
}
