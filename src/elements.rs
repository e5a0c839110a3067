//! The bytes of tensors.

use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, Tensor, WithDType};

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

/// Makes a tensor whose elements `fill` writes as a safetensors file stores them, in place: no second copy of them is made in host memory.
pub(crate) fn from_bytes<E: From<candle_core::Error>>(
    dtype: DType,
    shape: &[usize],
    device: &Device,
    fill: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
) -> std::result::Result<Tensor, E> {
    match dtype {
        DType::U8 => filled(CpuStorage::U8, shape, device, fill),
        DType::U32 => filled(CpuStorage::U32, shape, device, fill),
        DType::I16 => filled(CpuStorage::I16, shape, device, fill),
        DType::I32 => filled(CpuStorage::I32, shape, device, fill),
        DType::I64 => filled(CpuStorage::I64, shape, device, fill),
        DType::BF16 => filled(CpuStorage::BF16, shape, device, fill),
        DType::F16 => filled(CpuStorage::F16, shape, device, fill),
        DType::F32 => filled(CpuStorage::F32, shape, device, fill),
        DType::F64 => filled(CpuStorage::F64, shape, device, fill),
        DType::F8E4M3 => filled(CpuStorage::F8E4M3, shape, device, fill),
        _ => {
            let problem = format!("a tensor of type {dtype:?} cannot be loaded");
            Err(candle_core::Error::Msg(problem).into())
        }
    }
}

/// The storage names the type of an element.
fn filled<T: WithDType, E: From<candle_core::Error>>(
    _: fn(Vec<T>) -> CpuStorage,
    shape: &[usize],
    device: &Device,
    fill: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
) -> std::result::Result<Tensor, E> {
    let mut values = Vec::new();
    let count = shape.iter().product();
    let reserved = values.try_reserve_exact(count);
    reserved.map_err(candle_core::Error::wrap)?;
    values.resize(count, T::zero());
    // SAFETY: the pointer and the length in bytes are those of a live, initialized vector that nobody else refers to meanwhile. It is
    // called for the number types above only, which have no padding, and of which any bytes are a value.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(&values[..]))
    };
    fill(bytes)?;
    if cfg!(target_endian = "big") {
        let elements = bytes.chunks_exact_mut(size_of::<T>());
        elements.for_each(<[u8]>::reverse);
    }
    Ok(Tensor::from_vec(values, shape, device)?)
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
