use std::any::Any;
use std::fmt::Debug;

use candle_core::{CpuStorage, WithDType};
use half::slice::HalfFloatSliceExt;

/// A type to compute in: f64 for f64 parameters, f32 for all others.
pub trait Real: WithDType + Debug + Default {
    const EPSILON: f64;
    /// The smallest positive normal number.
    const SMALLEST: f64;

    fn sqrt(self) -> Self;

    /// Values that f16 and bf16 are converted to and from: all if they are f32, none if they are f64.
    fn f32s(_: &[Self]) -> &[f32] {
        &[]
    }

    fn f32s_mut(_: &mut [Self]) -> &mut [f32] {
        &mut []
    }
}

impl Real for f32 {
    const EPSILON: f64 = f32::EPSILON as f64;
    const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

    #[inline]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    fn f32s(values: &[f32]) -> &[f32] {
        values
    }

    fn f32s_mut(values: &mut [f32]) -> &mut [f32] {
        values
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

/// Converts f16 or bf16, from an element on; the shorter slice decides how many.
pub fn load_half<H, C: Real>(from: &[H], start: usize, into: &mut [C])
where
    [H]: HalfFloatSliceExt,
{
    let (from, into) = equally_long(after(from, start), C::f32s_mut(into));
    from.convert_to_f32_slice(into);
}

/// Converts to f16 or bf16, rounding to nearest; the shorter slice decides how many.
pub fn store_half<H, C: Real>(from: &[C], into: &mut [H])
where
    [H]: HalfFloatSliceExt,
{
    let (from, into) = equally_long(C::f32s(from), into);
    into.convert_from_f32_slice(from);
}

fn equally_long<'a, A, B>(from: &'a [A], into: &'a mut [B]) -> (&'a [A], &'a mut [B]) {
    let len = from.len().min(into.len());
    let (from, into) = (from.get(..len), into.get_mut(..len));
    (from.unwrap_or_default(), into.unwrap_or_default())
}

/// Copies values from an element on; the shorter slice decides how many.
pub fn copy<C: Real>(from: &[C], start: usize, into: &mut [C]) {
    let (from, into) = equally_long(after(from, start), into);
    into.copy_from_slice(from);
}

pub fn after<T>(values: &[T], start: usize) -> &[T] {
    values.get(start..).unwrap_or_default()
}

/// Returns the values of a storage if they have this type.
pub fn reals<C: Real>(storage: &mut CpuStorage) -> Option<&mut [C]> {
    let values: &mut dyn Any = match storage {
        CpuStorage::F32(values) => values,
        CpuStorage::F64(values) => values,
        _ => return None,
    };
    values.downcast_mut::<Vec<C>>().map(Vec::as_mut_slice)
}
