//! Moves a storage out of its tensor.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, Error, InplaceOp1, Layout, MetalStorage, Result, Storage, Tensor,
};
use parking_lot::Mutex;

/// A tensor with the values of `output`, if it has any, that shares no storage with the inputs.
pub fn unshared(output: Tensor, inputs: &[&Tensor]) -> Result<Tensor> {
    if output.elem_count() == 0 {
        // One element, because CUDA may refuse to allocate nothing.
        return Tensor::zeros(1, output.dtype(), output.device());
    }
    let storage = address(&output);
    match inputs.iter().any(|input| address(input) == storage) {
        true => output.force_contiguous(),
        false => Ok(output),
    }
}

/// Where a tensor's storage is. Tensors that share it have the same address.
fn address(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage)
}

/// Moves the storage out of a tensor that has elements.
pub fn take_storage(tensor: Tensor) -> Result<Storage> {
    let taken = Take(Mutex::new(None));
    let tensor = match tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
        true => tensor,
        false => tensor.force_contiguous()?,
    };
    tensor.inplace_op1(&taken)?;
    let missing = || Error::Msg("take-storage: nothing was taken".into()).bt();
    taken.0.into_inner().ok_or_else(missing)
}

/// Takes a tensor's storage and leaves an empty one.
struct Take(Mutex<Option<Storage>>);

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take-storage"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        let empty = CpuStorage::U8(Vec::new());
        *self.0.lock() = Some(Storage::Cpu(std::mem::replace(storage, empty)));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let empty = crate::nn::kernel::cuda::smallest(&storage.device)?;
        *self.0.lock() = Some(Storage::Cuda(std::mem::replace(storage, empty)));
        Ok(())
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(&self, _: &mut CudaStorage, _: &Layout) -> Result<()> {
        let remedy = "turn on the feature `cuda` of candle-headroom, as of candle-core";
        Err(Error::Msg(format!(
            "layers with a backward pass need CUDA kernels: {remedy}"
        ))
        .bt())
    }

    fn metal_fwd(&self, storage: &mut MetalStorage, layout: &Layout) -> Result<()> {
        // Clones share a Metal buffer.
        *self.0.lock() = Some(Storage::Metal(storage.try_clone(layout)?));
        Ok(())
    }
}
