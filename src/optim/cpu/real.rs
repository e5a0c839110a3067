use std::any::Any;
use std::fmt::Debug;

use candle_core::{CpuStorage, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A type to compute in: f64 for f64 parameters, f32 for all others.
pub trait Real: Stored<Real = Self> {
    const EPSILON: f64;
    /// The smallest positive normal number.
    const SMALLEST: f64;

    fn sqrt(self) -> Self;
}

impl Real for f32 {
    const EPSILON: f64 = f32::EPSILON as f64;
    const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

    #[inline]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

impl Real for f64 {
    const EPSILON: f64 = f64::EPSILON;
    const SMALLEST: f64 = f64::MIN_POSITIVE;

    #[inline]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

/// A type of parameters, gradients and moments in memory.
pub trait Stored: WithDType + Debug + Default {
    /// The type to compute in.
    type Real: Real;

    /// Converts values; the shorter slice decides how many.
    fn load(from: &[Self], into: &mut [Self::Real]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into = Self::Real::from_f64(from.to_f64());
        }
    }

    /// Converts values, rounding to nearest; the shorter slice decides how many.
    fn store(from: &[Self::Real], into: &mut [Self]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into = Self::from_f64(from.to_f64());
        }
    }

    /// Returns the values themselves if they need no conversion.
    fn reals(_: &mut [Self]) -> Option<&mut [Self::Real]> {
        None
    }
}

impl Stored for f32 {
    type Real = f32;

    fn reals(values: &mut [Self]) -> Option<&mut [f32]> {
        Some(values)
    }
}

impl Stored for f64 {
    type Real = f64;

    fn reals(values: &mut [Self]) -> Option<&mut [f64]> {
        Some(values)
    }
}

impl Stored for f16 {
    type Real = f32;

    fn load(from: &[Self], into: &mut [f32]) {
        let (from, into) = equally_long(from, into);
        from.convert_to_f32_slice(into);
    }

    fn store(from: &[f32], into: &mut [Self]) {
        let (from, into) = equally_long(from, into);
        into.convert_from_f32_slice(from);
    }
}

impl Stored for bf16 {
    type Real = f32;

    fn load(from: &[Self], into: &mut [f32]) {
        let (from, into) = equally_long(from, into);
        from.convert_to_f32_slice(into);
    }

    fn store(from: &[f32], into: &mut [Self]) {
        let (from, into) = equally_long(from, into);
        into.convert_from_f32_slice(from);
    }
}

fn equally_long<'a, A, B>(from: &'a [A], into: &'a mut [B]) -> (&'a [A], &'a mut [B]) {
    let len = from.len().min(into.len());
    let (from, into) = (from.get(..len), into.get_mut(..len));
    (from.unwrap_or_default(), into.unwrap_or_default())
}

/// Returns the values of a storage if they have this type.
pub fn values_mut<T: Stored>(storage: &mut CpuStorage) -> Option<&mut [T]> {
    let values: &mut dyn Any = match storage {
        CpuStorage::F32(values) => values,
        CpuStorage::F64(values) => values,
        CpuStorage::F16(values) => values,
        CpuStorage::BF16(values) => values,
        _ => return None,
    };
    values.downcast_mut::<Vec<T>>().map(Vec::as_mut_slice)
}
