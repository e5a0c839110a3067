use std::fmt::Debug;
use std::iter::Sum;

use candle_core::{DType, WithDType};
use half::{bf16, f16};
use num_traits::Float;

use super::cuda::CudaElement;
use super::functions::Functions;

/// A floating-point type that kernels read and write.
pub trait Element: WithDType + CudaElement + Debug {
    /// The type to compute in: f64 for f64, f32 for all others.
    type Sum: Element<Sum = Self::Sum> + Float + Functions + Sum + num_traits::FloatConst;

    fn widen(self) -> Self::Sum;

    /// Rounds to nearest.
    fn narrow(value: Self::Sum) -> Self;
}

/// The type of [`Element::Sum`]: f64 for f64, f32 for all others.
pub fn sum_type(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

impl Element for f32 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Element for f64 {
    type Sum = f64;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(value: f64) -> f64 {
        value
    }
}

impl Element for f16 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

impl Element for bf16 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}
