//! The storages of tensors: to read, to make tensors of, and to change in place.

use std::cell::RefCell;

use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaStorage, DType, Device, Error, InplaceOp1, Layout, MetalStorage, Result, Shape,
    Storage, Tensor, WithDType,
};

/// The elements of a contiguous tensor on the CPU.
pub fn slice_of<'a, T: WithDType>(
    storage: &'a Storage,
    layout: &Layout,
    name: &'static str,
) -> Result<&'a [T]> {
    let Storage::Cpu(storage) = storage else {
        return Err(mismatch(name));
    };
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| mismatch(name))?;
    let values = T::cpu_storage_as_slice(storage)?.get(start..end);
    values.ok_or_else(|| mismatch(name))
}

/// The elements of a contiguous tensor among those of its storage.
pub fn slice_of_mut<'a, T>(
    values: &'a mut [T],
    layout: &Layout,
    name: &'static str,
) -> Result<&'a mut [T]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    values.ok_or_else(|| mismatch(name))
}

/// A tensor outside the graph.
pub fn tensor(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// Fails if two types differ.
pub fn same_type(op: &'static str, lhs: DType, rhs: DType) -> Result<()> {
    match lhs == rhs {
        true => Ok(()),
        false => Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt()),
    }
}

/// Fails if two devices differ.
pub fn same_device(op: &'static str, lhs: &Device, rhs: &Device) -> Result<()> {
    if lhs.same_device(rhs) {
        return Ok(());
    }
    let (lhs, rhs) = (lhs.location(), rhs.location());
    Err(Error::DeviceMismatchBinaryOp { lhs, rhs, op }.bt())
}

/// There are no kernels for a device: [`runs_on`](super::runs_on) said so.
pub fn no_kernels(name: &'static str) -> Error {
    let remedy = "for CUDA turn on the feature `cuda` of candle-headroom, as of candle-core";
    Error::Msg(format!("{name}: no kernels for this device; {remedy}")).bt()
}

/// Inputs do not match what the kernel was written for.
pub fn mismatch(name: &'static str) -> Error {
    Error::Msg(format!("{name}: inputs of unexpected number or layout")).bt()
}

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
        Err(no_kernels(self.name))
    }

    fn metal_fwd(&self, storage: &mut MetalStorage, layout: &Layout) -> Result<()> {
        self.apply(InPlace::Metal(storage), layout)
    }
}
