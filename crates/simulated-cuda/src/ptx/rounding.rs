//! Roundings for which the host has no instruction.

use half::{bf16, f16};

/// How a result is rounded to its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Nearest,
    /// Toward zero.
    Zero,
    /// Toward minus infinity.
    Down,
    /// Toward plus infinity.
    Up,
}

impl Rounding {
    /// The rounding that the suffixes specify.
    pub fn of(modifiers: &[&str]) -> Rounding {
        let has = |name| modifiers.contains(&name);
        match () {
            () if has("rz") => Rounding::Zero,
            () if has("rm") => Rounding::Down,
            () if has("rp") => Rounding::Up,
            () => Rounding::Nearest,
        }
    }
}

/// Rounds to odd: the 32-bit float with `value`'s leading bits, whose last bit is 1 if anything was lost. Rounding it again, to a type
/// with at most 22 bits of precision, gives the same result as rounding `value` directly.
pub fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near as f64 == value || value.is_nan() {
        return near;
    }
    let bits = near.to_bits();
    let truncated = if (near as f64).abs() > value.abs() {
        bits - 1
    } else {
        bits
    };
    f32::from_bits(truncated | 1)
}

/// A type to which results are rounded.
pub trait Narrow: Copy {
    /// To the nearest, ties to even.
    fn nearest(value: f64) -> Self;
    fn widen(self) -> f64;
    /// The next value toward minus infinity.
    fn below(self) -> Self;
    /// The next value toward plus infinity.
    fn above(self) -> Self;
}

macro_rules! narrow_half {
    ($t:ident) => {
        impl Narrow for $t {
            #[inline(always)]
            fn nearest(value: f64) -> Self {
                if value.is_nan() {
                    return $t::from_bits(0x7fff);
                }
                $t::from_f32(to_odd(value))
            }
            #[inline(always)]
            fn widen(self) -> f64 {
                self.to_f32() as f64
            }
            fn below(self) -> Self {
                let bits = self.to_bits();
                $t::from_bits(if bits & 0x7fff == 0 {
                    0x8001
                } else if bits >> 15 == 0 {
                    bits - 1
                } else {
                    bits + 1
                })
            }
            fn above(self) -> Self {
                -(-self).below()
            }
        }
    };
}
narrow_half!(f16);
narrow_half!(bf16);

impl Narrow for f32 {
    #[inline(always)]
    fn nearest(value: f64) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn widen(self) -> f64 {
        self as f64
    }
    fn below(self) -> f32 {
        self.next_down()
    }
    fn above(self) -> f32 {
        self.next_up()
    }
}

impl Narrow for f64 {
    #[inline(always)]
    fn nearest(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    fn below(self) -> f64 {
        self.next_down()
    }
    fn above(self) -> f64 {
        self.next_up()
    }
}

/// `value + error` rounded to a type. The error is too small to change `value` when added to it, so only its sign matters.
pub fn directed<T: Narrow>(value: f64, error: f64, rounding: Rounding) -> T {
    let near = T::nearest(value);
    let wide = near.widen();
    if rounding == Rounding::Nearest || !value.is_finite() {
        return near;
    }
    let above = wide > value || (wide == value && error < 0.0);
    let below = wide < value || (wide == value && error > 0.0);
    let negative = value < 0.0 || (value == 0.0 && error < 0.0);
    match rounding {
        Rounding::Down if above => near.below(),
        Rounding::Up if below => near.above(),
        Rounding::Zero if above && !negative => near.below(),
        Rounding::Zero if below && negative => near.above(),
        _ => near,
    }
}

/// A sum as the nearest 64-bit float, and the rounding error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// `a + b` with this rounding.
pub fn add<T: Narrow>(a: f64, b: f64, rounding: Rounding) -> T {
    let (sum, error) = two_sum(a, b);
    // A sum that cancels exactly is negative zero when rounding down.
    if rounding == Rounding::Down
        && sum == 0.0
        && error == 0.0
        && (a.is_sign_negative() || b.is_sign_negative())
    {
        return T::nearest(-0.0);
    }
    directed(sum, error, rounding)
}

/// `a × b` with this rounding.
pub fn mul<T: Narrow>(a: f64, b: f64, rounding: Rounding) -> T {
    let product = a * b;
    directed(product, a.mul_add(b, -product), rounding)
}

/// `a × b + c` with this rounding, for operands whose product is exact in 64 bits (those of at most 32 bits).
pub fn fma<T: Narrow>(a: f64, b: f64, c: f64, rounding: Rounding) -> T {
    add(a * b, c, rounding)
}

/// `a ÷ b` with this rounding.
pub fn div<T: Narrow>(a: f64, b: f64, rounding: Rounding) -> T {
    let quotient = a / b;
    let rest = (-quotient).mul_add(b, a);
    directed(quotient, if b < 0.0 { -rest } else { rest }, rounding)
}

/// The square root with this rounding.
pub fn sqrt<T: Narrow>(a: f64, rounding: Rounding) -> T {
    let root = a.sqrt();
    directed(root, (-root).mul_add(root, a), rounding)
}
