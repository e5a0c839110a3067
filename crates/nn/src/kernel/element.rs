use std::fmt::Debug;
use std::iter::Sum;

use candle_core::{DType, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_traits::{Float, FloatConst, Zero};

use super::functions::Functions;

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

/// A type that the CPU computes in.
pub trait Number: Element<Sum = Self> + Float + FloatConst + Functions + Sum {}

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

        impl Number for $number {}
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
