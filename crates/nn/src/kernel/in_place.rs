//! Changes a tensor's storage in place.

use std::cell::RefCell;

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
    let (mut change, mut result) = (Some(change), None);
    let mut apply = |storage: InPlace, layout: &Layout| -> Result<()> {
        let change = change.take().ok_or_else(|| mismatch(name))?;
        result = Some(change(storage, layout)?);
        Ok(())
    };
    let apply = RefCell::new(&mut apply as &mut Change);
    tensor.inplace_op1(&Operation { name, apply })?;
    result.ok_or_else(|| mismatch(name))
}

type Change<'a> = dyn FnMut(InPlace, &Layout) -> Result<()> + 'a;

/// One type for all closures, so that candle's part is compiled once.
struct Operation<'a, 'b> {
    name: &'static str,
    apply: RefCell<&'a mut Change<'b>>,
}

impl Operation<'_, '_> {
    fn apply(&self, storage: InPlace, layout: &Layout) -> Result<()> {
        let mut apply = self.apply.try_borrow_mut();
        let apply = apply.as_mut().map_err(|_| mismatch(self.name))?;
        (**apply)(storage, layout)
    }
}

impl InplaceOp1 for Operation<'_, '_> {
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
