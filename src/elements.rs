//! The bytes of tensors.

use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, Tensor, WithDType};

/// Calls a macro with the element types that are saved, loaded and copied, by the names that `DType` and candle's storages have for
/// them. Candle only stores the others.
macro_rules! of_elements {
    ($call:ident) => {
        $call! { U8 U32 I16 I32 I64 BF16 F16 F32 F64 F8E4M3 }
    };
}
#[cfg(feature = "cuda")]
pub(crate) use of_elements;

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
    match bytes(&storage, layout) {
        Some(bytes) => Ok(f(bytes)),
        None => candle_core::bail!("a tensor of type {:?} cannot be saved", tensor.dtype()),
    }
}

/// The bytes of a contiguous tensor in host memory; `None` for another one, and for the types that candle only stores.
pub(crate) fn bytes<'a>(storage: &'a Storage, layout: &Layout) -> Option<&'a [u8]> {
    let (start, end) = layout.contiguous_offsets()?;
    macro_rules! part {
        ($($dtype:ident)+) => {
            match storage {
                $(Storage::Cpu(CpuStorage::$dtype(values)) => values.get(start..end).map(plain),)+
                _ => None,
            }
        };
    }
    of_elements!(part)
}

/// Makes a tensor whose elements `fill` writes as a safetensors file stores them, in place: no second copy of them is made in host memory.
pub(crate) fn from_bytes<E: From<candle_core::Error>>(
    dtype: DType,
    shape: &[usize],
    device: &Device,
    fill: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
) -> std::result::Result<Tensor, E> {
    macro_rules! filled {
        ($($dtype:ident)+) => {
            match dtype {
                $(DType::$dtype => filled(CpuStorage::$dtype, shape, device, fill),)+
                _ => {
                    let problem = format!("a tensor of type {dtype:?} cannot be loaded");
                    Err(candle_core::Error::Msg(problem).into())
                }
            }
        };
    }
    of_elements!(filled)
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
    let bytes = plain_mut(&mut values);
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

/// The bytes of numbers, to change.
pub(crate) fn plain_mut<T: WithDType>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: the pointer and the length in bytes are those of a live slice that is borrowed mutably. It is called for the number types
    // above only, which have no padding, and of which any bytes are a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// The bytes of numbers.
fn plain<T: WithDType>(values: &[T]) -> &[u8] {
    // SAFETY: the pointer and the length in bytes are those of a live slice. It is called for the number types above only, which
    // have no padding, and any byte is a valid `u8`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_as_the_same_numbers() -> Result<()> {
        macro_rules! types {
            ($($dtype:ident)+) => { [$(DType::$dtype),+] };
        }
        for dtype in of_elements!(types) {
            let numbers = Tensor::arange(0f32, 12., &Device::Cpu)?.to_dtype(dtype)?;
            // Not contiguous, and not from the beginning of its storage.
            let numbers = numbers.reshape((3, 4))?.narrow(0, 1, 2)?.t()?;
            let bytes = with_bytes(&numbers, <[u8]>::to_vec)?;
            assert_eq!(bytes.len(), size(&numbers), "{dtype:?}");
            let same = from_bytes(dtype, &[4, 2], &Device::Cpu, |into| {
                into.copy_from_slice(&bytes);
                Ok::<_, candle_core::Error>(())
            })?;
            let mut expected = Vec::new();
            numbers.contiguous()?.write_bytes(&mut expected)?;
            assert_eq!(bytes, expected, "{dtype:?}");
            assert_eq!(with_bytes(&same, <[u8]>::to_vec)?, expected, "{dtype:?}");
        }
        Ok(())
    }
}
