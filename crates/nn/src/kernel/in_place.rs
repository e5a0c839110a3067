//! Changes a tensor's storage in place.

use std::cell::Cell;

use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, MetalStorage, Result, Tensor};

use super::storage::mismatch;

/// The storage of a tensor, to change or to replace.
pub enum InPlace<'a> {
    Cpu(&'a mut CpuStorage),
    #[cfg(feature = "cuda")]
    Cuda(&'a mut CudaStorage),
    Metal(&'a mut MetalStorage),
}

/// Calls `change` with the storage of a tensor. It may read other tensors, but none that shares this storage, which is locked.
pub fn in_place<R>(
    name: &'static str,
    tensor: &Tensor,
    change: impl FnOnce(InPlace, &Layout) -> Result<R>,
) -> Result<R> {
    let operation = Operation {
        name,
        change: Cell::new(Some(change)),
        result: Cell::new(None),
    };
    tensor.inplace_op1(&operation)?;
    operation.result.into_inner().ok_or_else(|| mismatch(name))
}

struct Operation<F, R> {
    name: &'static str,
    change: Cell<Option<F>>,
    result: Cell<Option<R>>,
}

impl<R, F: FnOnce(InPlace, &Layout) -> Result<R>> Operation<F, R> {
    fn apply(&self, storage: InPlace, layout: &Layout) -> Result<()> {
        let change = self.change.take();
        let change = change.ok_or_else(|| mismatch(self.name))?;
        self.result.set(Some(change(storage, layout)?));
        Ok(())
    }
}

impl<R, F: FnOnce(InPlace, &Layout) -> Result<R>> InplaceOp1 for Operation<F, R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.apply(InPlace::Cpu(storage), layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        self.apply(InPlace::Cuda(storage), layout)
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(&self, _: &mut CudaStorage, _: &Layout) -> Result<()> {
        Err(super::no_kernels(self.name))
    }

    fn metal_fwd(&self, storage: &mut MetalStorage, layout: &Layout) -> Result<()> {
        self.apply(InPlace::Metal(storage), layout)
    }
}
