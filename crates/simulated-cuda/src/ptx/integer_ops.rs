//! The functions of PTX's integer instructions.

use super::registers::Word;

/// An integer of a register.
pub trait Integer: Word + Ord {
    /// Bits of the type.
    const BITS: u32;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The upper half of the product.
    fn mul_high(self, other: Self) -> Self;
    fn add_saturated(self, other: Self) -> Self;
    fn sub_saturated(self, other: Self) -> Self;
    /// All ones if the divisor is zero, as on the device.
    fn div(self, other: Self) -> Self;
    /// The dividend if the divisor is zero.
    fn rem(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// Shifts of the type's width or more give zero.
    fn shift_left(self, by: u32) -> Self;
    /// Shifts of the type's width or more give zero, or for signed types the sign in every bit.
    fn shift_right(self, by: u32) -> Self;
    /// Leading zeros.
    fn leading(self) -> u32;
    /// The number of ones.
    fn ones(self) -> u32;
    /// The bits in reverse order.
    fn reversed(self) -> Self;
    fn to_i128(self) -> i128;
    /// Keeps the low bits.
    fn from_i128(value: i128) -> Self;
    /// The nearest value of the type.
    fn clamped(value: i128) -> Self;
}

macro_rules! integers {
    ($($t:ident)*) => { $(impl Integer for $t {
        const BITS: u32 = $t::BITS;
        #[inline(always)]
        fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        #[inline(always)]
        fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
        #[inline(always)]
        fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
        #[inline(always)]
        fn mul_high(self, other: Self) -> Self { ((self as i128).wrapping_mul(other as i128) >> $t::BITS) as $t }
        #[inline(always)]
        fn add_saturated(self, other: Self) -> Self { self.saturating_add(other) }
        #[inline(always)]
        fn sub_saturated(self, other: Self) -> Self { self.saturating_sub(other) }
        #[inline(always)]
        fn div(self, other: Self) -> Self { if other == 0 { !0 } else { self.wrapping_div(other) } }
        #[inline(always)]
        fn rem(self, other: Self) -> Self { if other == 0 { self } else { self.wrapping_rem(other) } }
        #[inline(always)]
        fn neg(self) -> Self { self.wrapping_neg() }
        #[allow(unused_comparisons, reason = "the macro serves unsigned types as well")]
        #[inline(always)]
        fn abs(self) -> Self { if self < 0 { self.wrapping_neg() } else { self } }
        #[inline(always)]
        fn shift_left(self, by: u32) -> Self { if by < $t::BITS { self << by } else { 0 } }
        #[allow(unused_comparisons, reason = "the macro serves unsigned types as well")]
        #[inline(always)]
        fn shift_right(self, by: u32) -> Self {
            if by < $t::BITS { self >> by } else if self < 0 { !0 } else { 0 }
        }
        #[inline(always)]
        fn leading(self) -> u32 { self.leading_zeros() }
        #[inline(always)]
        fn ones(self) -> u32 { self.count_ones() }
        #[inline(always)]
        fn reversed(self) -> Self { self.reverse_bits() }
        #[inline(always)]
        fn to_i128(self) -> i128 { self as i128 }
        #[inline(always)]
        fn from_i128(value: i128) -> Self { value as $t }
        #[inline(always)]
        fn clamped(value: i128) -> Self { value.clamp($t::MIN as i128, $t::MAX as i128) as $t }
    })* };
}
integers!(u8 u16 u32 u64 i8 i16 i32 i64);

/// Runs the body with `$t` naming the Rust type of an integer [`Type`](super::types::Type) of 16 to 64 bits; untyped bits
/// are unsigned.
macro_rules! by_integer {
    ($kind:expr, $t:ident => $body:expr) => {
        match $kind {
            Type::U16 | Type::B16 => {
                type $t = u16;
                $body
            }
            Type::U32 | Type::B32 => {
                type $t = u32;
                $body
            }
            Type::U64 | Type::B64 => {
                type $t = u64;
                $body
            }
            Type::S16 => {
                type $t = i16;
                $body
            }
            Type::S32 => {
                type $t = i32;
                $body
            }
            Type::S64 => {
                type $t = i64;
                $body
            }
            other => return Err(format!("not an integer type: {other:?}")),
        }
    };
}
pub(super) use by_integer;
