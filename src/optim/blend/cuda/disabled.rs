use candle_core::{CudaStorage, Error, Layout, Result};

use crate::optim::blend::{Blend, Scale};

/// A program may enable candle's CUDA backend by itself; candle's own operations are used then.
pub(in crate::optim::blend) const IS_BUILT: bool = false;

pub(in crate::optim::blend) fn takes(_: &Layout) -> bool {
    false
}

pub(in crate::optim::blend) fn scale(_: &Scale, _: &mut CudaStorage, _: &Layout) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub(in crate::optim::blend) fn blend(
    _: &Blend,
    _: &mut CudaStorage,
    _: &CudaStorage,
    _: (&Layout, &Layout),
) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport)
}
