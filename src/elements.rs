//! The bytes of tensors.

use candle_core::{CpuStorage, Device, Layout, Result, Storage, Tensor, WithDType};

/// Calls `f` with the tensor's elements as a safetensors file stores them: row by row, little-endian. Nothing is copied if they lie
/// so in host memory.
pub(crate) fn with_bytes<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    if cfg!(target_endian = "big") {
        let mut bytes = Vec::with_capacity(size(&tensor));
        tensor.write_bytes(&mut bytes)?;
        return Ok(f(&bytes));
    }
    let (storage, layout) = tensor.storage_and_layout();
    let bytes = match &*storage {
        Storage::Cpu(storage) => match storage {
            CpuStorage::U8(values) => part(values, layout),
            CpuStorage::U32(values) => part(values, layout),
            CpuStorage::I16(values) => part(values, layout),
            CpuStorage::I32(values) => part(values, layout),
            CpuStorage::I64(values) => part(values, layout),
            CpuStorage::BF16(values) => part(values, layout),
            CpuStorage::F16(values) => part(values, layout),
            CpuStorage::F32(values) => part(values, layout),
            CpuStorage::F64(values) => part(values, layout),
            CpuStorage::F8E4M3(values) => part(values, layout),
            _ => None,
        },
        _ => None,
    };
    match bytes {
        Some(bytes) => Ok(f(bytes)),
        None => {
            candle_core::bail!("a tensor of type {:?} cannot be saved", tensor.dtype())
        }
    }
}

/// The tensor's bytes in a file.
pub(crate) fn size(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

fn part<'a, T: WithDType>(values: &'a [T], layout: &Layout) -> Option<&'a [u8]> {
    let (start, end) = layout.contiguous_offsets()?;
    let values = values.get(start..end)?;
    // SAFETY: the pointer and the length in bytes are those of a live slice. It is called for the number types above only, which
    // have no padding, and any byte is a valid `u8`.
    Some(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
}
