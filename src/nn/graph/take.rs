//! Moves a storage out of its tensor.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, Error, InplaceOp1, Layout, MetalStorage, Result, Storage, Tensor,
};
use parking_lot::Mutex;

use super::gradient::address;

/// A tensor with the values of `output` that shares no storage with the inputs.
pub fn unshared(output: Tensor, inputs: &[&Tensor]) -> Result<Tensor> {
    let storage = address(&output);
    let is_shared = inputs.iter().any(|input| address(input) == storage);
    match is_shared && output.elem_count() > 0 {
        true => output.force_contiguous(),
        false => Ok(output),
    }
}

/// Moves the storage out of a tensor. One without elements, for which many of candle's operations return an argument, keeps it.
pub fn take_storage(tensor: Tensor) -> Result<Storage> {
    let taken = Take(Mutex::new(None));
    let tensor = match tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
        // One element, because CUDA may refuse to allocate nothing.
        _ if tensor.elem_count() == 0 => Tensor::zeros(1, tensor.dtype(), tensor.device())?,
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
