//! Moves a storage out of its tensor.

use std::mem::replace;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Result, Storage, Tensor};

use super::gradient::address;
use crate::kernel::{InPlace, in_place};

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
    const NAME: &str = "take-storage";
    let tensor = match tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
        // One element, because CUDA may refuse to allocate nothing.
        _ if tensor.elem_count() == 0 => Tensor::zeros(1, tensor.dtype(), tensor.device())?,
        true => tensor,
        false => tensor.force_contiguous()?,
    };
    in_place(NAME, &tensor, |storage, layout| match storage {
        InPlace::Cpu(storage) => Ok(Storage::Cpu(replace(storage, CpuStorage::U8(Vec::new())))),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(storage) => {
            let empty = crate::kernel::cuda::smallest(&storage.device)?;
            Ok(Storage::Cuda(replace(storage, empty)))
        }
        // Clones share a Metal buffer.
        InPlace::Metal(storage) => Ok(Storage::Metal(storage.try_clone(layout)?)),
    })
}
