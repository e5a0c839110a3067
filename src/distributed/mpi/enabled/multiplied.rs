use candle_core::{DType, WithDType};

/// Writes the products of these numbers and a factor. Of other types than f32 and f64 it writes copies.
///
/// # Safety
/// `from` holds numbers of this type and is aligned for them. `into` is other memory, aligned alike, with room for as many bytes.
pub(super) unsafe fn multiplied(from: &[u8], dtype: DType, factor: f64, into: *mut u8) {
    // SAFETY: what the caller promises.
    unsafe {
        match dtype {
            DType::F32 if factor != 1. => products::<f32>(from, factor, into),
            DType::F64 if factor != 1. => products::<f64>(from, factor, into),
            _ => into.copy_from_nonoverlapping(from.as_ptr(), from.len()),
        }
    }
}

/// # Safety
/// As for [`multiplied`].
unsafe fn products<T: WithDType>(from: &[u8], factor: f64, into: *mut u8) {
    let (len, factor) = (from.len() / size_of::<T>(), T::from_f64(factor));
    // SAFETY: `from` holds as many numbers, and there is room for them at `into`, which is other memory.
    let (from, into) = unsafe {
        (
            std::slice::from_raw_parts(from.as_ptr().cast::<T>(), len),
            std::slice::from_raw_parts_mut(into.cast::<T>(), len),
        )
    };
    let pairs = into.iter_mut().zip(from);
    pairs.for_each(|(into, from)| *into = *from * factor);
}
