//! Numbers in memory that is not candle's.

use half::{bf16, f16};

/// A type of which any bits are a value.
///
/// # Safety
/// It has no padding, and each pattern of bits is valid.
pub unsafe trait Number: Copy {}

// SAFETY: a floating-point number.
unsafe impl Number for f32 {}
// SAFETY: the same.
unsafe impl Number for f64 {}
// SAFETY: the same, in a `u16`.
unsafe impl Number for f16 {}
// SAFETY: the same, in a `u16`.
unsafe impl Number for bf16 {}

/// The numbers that these bytes are; `None` if they are not aligned, or not whole numbers.
pub fn numbers<T: Number>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: each pattern of bits is a number.
    match unsafe { bytes.align_to() } {
        ([], numbers, []) => Some(numbers),
        _ => None,
    }
}

pub fn numbers_mut<T: Number>(bytes: &mut [u8]) -> Option<&mut [T]> {
    // SAFETY: each pattern of bits is a number, and a number has no other bytes.
    match unsafe { bytes.align_to_mut() } {
        ([], numbers, []) => Some(numbers),
        _ => None,
    }
}
