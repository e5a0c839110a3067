//! The functions of PTX's floating-point instructions.

use super::registers::Word;
use super::rounding::{self, Narrow, Rounding};
use half::{bf16, f16};

/// A floating-point number of a register. 16-bit types compute in a wider type and round once.
pub trait Float: Word + PartialOrd + Narrow {
    const NAN: Self;
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self × a + b`, rounded once.
    fn fma(self, a: Self, b: Self) -> Self;
    fn negate(self) -> Self;
    fn magnitude(self) -> Self;
    /// A zero of the same sign in place of a subnormal number.
    fn flushed(self) -> Self;
    fn is_nan(self) -> bool;
    fn negative(self) -> bool;
    /// A function of the host's 64-bit floats, for 64-bit numbers, or of its 32-bit floats for the others.
    fn apply(self, wide: impl Fn(f64) -> f64, narrow: impl Fn(f32) -> f32) -> Self;

    /// The smaller number, where -0 is below +0; if one is NaN, the other.
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        if self.is_nan() {
            return if other.is_nan() { Self::NAN } else { other };
        }
        if self < other || other.is_nan() || (self == other && self.negative()) {
            self
        } else {
            other
        }
    }

    /// The larger number; if one is NaN, the other.
    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        if self.is_nan() {
            return if other.is_nan() { Self::NAN } else { other };
        }
        if self > other || other.is_nan() || (self == other && other.negative()) {
            self
        } else {
            other
        }
    }

    /// Clamps to [0, 1]; NaN becomes 0.
    #[inline(always)]
    fn saturated(self) -> Self {
        if self > Self::ZERO {
            if self > Self::ONE { Self::ONE } else { self }
        } else {
            Self::ZERO
        }
    }

    /// `self × a + b` with this rounding; only for types of at most 32 bits.
    fn fma_rounded(self, a: Self, b: Self, rounding: Rounding) -> Self {
        rounding::fma(self.widen(), a.widen(), b.widen(), rounding)
    }
}

macro_rules! float {
    ($t:ident, $apply:ident) => {
        impl Float for $t {
            const NAN: $t = $t::NAN;
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn div(self, other: $t) -> $t {
                self / other
            }
            #[inline(always)]
            fn fma(self, a: $t, b: $t) -> $t {
                self.mul_add(a, b)
            }
            #[inline(always)]
            fn negate(self) -> $t {
                -self
            }
            #[inline(always)]
            fn magnitude(self) -> $t {
                self.abs()
            }
            #[inline(always)]
            fn flushed(self) -> $t {
                if self.abs() < $t::MIN_POSITIVE {
                    (0.0 as $t).copysign(self)
                } else {
                    self
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
            #[inline(always)]
            fn negative(self) -> bool {
                self.is_sign_negative()
            }
            #[inline(always)]
            fn apply(self, wide: impl Fn(f64) -> f64, narrow: impl Fn(f32) -> f32) -> $t {
                $apply(self, wide, narrow)
            }
        }
    };
}
float!(f32, narrow);
float!(f64, wide);

#[inline(always)]
fn narrow(value: f32, _: impl Fn(f64) -> f64, f: impl Fn(f32) -> f32) -> f32 {
    f(value)
}

#[inline(always)]
fn wide(value: f64, f: impl Fn(f64) -> f64, _: impl Fn(f32) -> f32) -> f64 {
    f(value)
}

macro_rules! half {
    ($t:ident) => {
        impl Float for $t {
            const NAN: $t = $t::from_bits(0x7fff);
            const ZERO: $t = $t::ZERO;
            const ONE: $t = $t::ONE;
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                Self::nearest(self.widen() + other.widen())
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                Self::nearest(self.widen() - other.widen())
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                Self::nearest(self.widen() * other.widen())
            }
            #[inline(always)]
            fn div(self, other: $t) -> $t {
                Self::nearest(self.widen() / other.widen())
            }
            #[inline(always)]
            fn fma(self, a: $t, b: $t) -> $t {
                // The product is exact, and the sum keeps enough bits for the second rounding to be innocuous.
                Self::nearest(self.widen() * a.widen() + b.widen())
            }
            #[inline(always)]
            fn negate(self) -> $t {
                $t::from_bits(self.to_bits() ^ 0x8000)
            }
            #[inline(always)]
            fn magnitude(self) -> $t {
                $t::from_bits(self.to_bits() & 0x7fff)
            }
            #[inline(always)]
            fn flushed(self) -> $t {
                if self.magnitude() < $t::MIN_POSITIVE {
                    $t::from_bits(self.to_bits() & 0x8000)
                } else {
                    self
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            #[inline(always)]
            fn negative(self) -> bool {
                self.is_sign_negative()
            }
            #[inline(always)]
            fn apply(self, _: impl Fn(f64) -> f64, narrow: impl Fn(f32) -> f32) -> $t {
                Self::nearest(narrow(self.to_f32()) as f64)
            }
        }
    };
}
half!(f16);
half!(bf16);

/// Runs the body with `$t` naming the Rust type of a floating-point [`Type`](super::types::Type).
macro_rules! by_float {
    ($kind:expr, $t:ident => $body:expr) => {
        match $kind {
            Type::F16 => {
                type $t = half::f16;
                $body
            }
            Type::Bf16 => {
                type $t = half::bf16;
                $body
            }
            Type::F32 => {
                type $t = f32;
                $body
            }
            Type::F64 => {
                type $t = f64;
                $body
            }
            other => return Err(format!("not a floating-point type: {other:?}")),
        }
    };
}
pub(super) use by_float;
