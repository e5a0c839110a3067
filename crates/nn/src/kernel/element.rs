use std::f32::consts::LOG2_E;
use std::fmt::Debug;
use std::iter::Sum;

use candle_core::{DType, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_traits::{Float, FloatConst, Zero};

/// A floating-point type of tensors.
pub trait Element: WithDType + Debug {
    /// The type to compute in: f64 for f64, f32 for all others.
    type Sum: Number;

    /// Whether that is another type.
    const IS_NARROW: bool;

    /// Elements in the type to compute in.
    fn widen(from: &[Self]) -> Vec<Self::Sum>;

    /// Rounds to nearest. Both slices have the same length.
    fn narrow(from: &[Self::Sum], into: &mut [Self]);
}

/// A type that the CPU computes in. The functions have neither branches nor calls in f32, within the rounding of f32, so that the compiler
/// turns them into vector instructions; in f64 they are those of the standard library.
pub trait Number: Element<Sum = Self> + Float + FloatConst + Sum {
    fn of(number: f64) -> Self;

    /// e^x. For f32 within 2 units in the last place.
    fn fast_exp(self) -> Self;

    /// The distribution function of the normal distribution, and its density.
    fn normal(self) -> (Self, Self);
}

/// The type of [`Element::Sum`]: f64 for f64, f32 for all others.
pub fn sum_type(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

macro_rules! number {
    ($number:ty) => {
        impl Element for $number {
            type Sum = $number;

            const IS_NARROW: bool = false;

            fn widen(from: &[$number]) -> Vec<$number> {
                from.to_vec()
            }

            fn narrow(from: &[$number], into: &mut [$number]) {
                into.copy_from_slice(from);
            }
        }
    };
}

macro_rules! narrow {
    ($half:ty) => {
        impl Element for $half {
            type Sum = f32;

            const IS_NARROW: bool = true;

            fn widen(from: &[$half]) -> Vec<f32> {
                let mut into = vec![f32::zero(); from.len()];
                from.convert_to_f32_slice(&mut into);
                into
            }

            fn narrow(from: &[f32], into: &mut [$half]) {
                into.convert_from_f32_slice(from);
            }
        }
    };
}

number!(f32);
number!(f64);
narrow!(f16);
narrow!(bf16);

/// Adding it rounds to an integer, which then stands in the lowest bits: 1.5 · 2²³.
const ROUNDER: f32 = 12_582_912.;
/// ln 2 in two parts; products of the first with integers below 2¹⁵ are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
const SQRT_HALF_OVER_PI: f64 = 0.398_942_280_401_432_7;

/// 2^n for n from -127, which gives zero, to 128, which gives infinity.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

impl Number for f32 {
    #[inline(always)]
    fn of(number: f64) -> f32 {
        number as f32
    }

    #[inline(always)]
    fn fast_exp(self) -> f32 {
        // Outside, the result is zero or infinity. NaN stays.
        let x = self.clamp(-105., 89.);
        let shifted = x * LOG2_E + ROUNDER;
        let n = shifted - ROUNDER;
        let r = (x - n * LN_2[0]) - n * LN_2[1];
        // The power series up to r⁷: |r| ≤ ln 2 / 2, so the next term is below 6e-9.
        let series = 1. / 720. + r * (1. / 5040.);
        let series = 1. / 24. + r * (1. / 120. + r * series);
        let series = 0.5 + r * (1. / 6. + r * series);
        let power = 1. + (r + r * r * series);
        let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
        // In two steps, because 2^n itself may be out of range.
        let half = n >> 1;
        power * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    }

    /// After Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26: within 1e-7.
    #[inline(always)]
    fn normal(self) -> (f32, f32) {
        let power = (-0.5 * self * self).fast_exp();
        let t = 1. / (1. + 0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2 * self.abs());
        let series = 1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4);
        let series = t * (0.254_829_6 + t * (-0.284_496_74 + t * series));
        let tail = 0.5 * series * power;
        let below = if self < 0. { tail } else { 1. - tail };
        (below, SQRT_HALF_OVER_PI as f32 * power)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn of(number: f64) -> f64 {
        number
    }

    #[inline(always)]
    fn fast_exp(self) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn normal(self) -> (f64, f64) {
        let below = 0.5 * candle_core::cpu::erf::erfc_f64(-self * std::f64::consts::FRAC_1_SQRT_2);
        (below, SQRT_HALF_OVER_PI * (-0.5 * self * self).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::Number;

    /// Distance in units in the last place of the exact value; of the smallest number where that is subnormal.
    fn off(x: f32) -> f64 {
        let exact = f64::from(x).exp();
        let unit = (exact.log2().floor() - 23.).max(-149.).exp2();
        (f64::from(x.fast_exp()) - exact).abs() / unit
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        // 88.7228 is the largest number whose power f32 can hold.
        let steps = 2_000_000;
        let xs = (0..=steps).map(|step| -104. + (88.7228 + 104.) * step as f32 / steps as f32);
        let worst = xs.map(off).fold(0., f64::max);
        assert!(worst <= 2., "{worst} units off");
        let near_zero = (1..=1000).map(|i| (i as f32).recip().powi(5));
        for x in near_zero {
            assert!(off(x) <= 2. && off(-x) <= 2., "{x}: {}", off(x));
        }
    }

    #[test]
    fn exp_of_what_is_out_of_range() {
        assert_eq!(0f32.fast_exp(), 1.);
        assert_eq!((-0f32).fast_exp(), 1.);
        for x in [88.73, 89., 1e3, f32::MAX, f32::INFINITY] {
            assert_eq!(x.fast_exp(), f32::INFINITY, "{x}");
        }
        for x in [-104.5, -1e3, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(x.fast_exp(), 0., "{x}");
        }
        assert!(f32::NAN.fast_exp().is_nan());
    }

    #[test]
    fn normal_distribution() {
        for step in -800..=800 {
            let x = f64::from(step) / 100.;
            let ((below, density), exact) = ((x as f32).normal(), x.normal());
            // The formula's own error is 7.5e-8; the argument is rounded to f32.
            assert!((f64::from(below) - exact.0).abs() < 3e-7, "{x}: {below}");
            assert!(
                (f64::from(density) - exact.1).abs() < 3e-7,
                "{x}: {density}"
            );
        }
        assert!((1.96f64.normal().0 - 0.975_002_104_851_78).abs() < 1e-12);
    }
}
