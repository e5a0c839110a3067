//! Gradients as an update on the CPU reads them: of any layout and type, scaled and clamped on the way, without a copy.

use std::any::Any;
use std::fmt::Debug;

use candle_core::{CpuStorage, DType, Layout, Result, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A type to compute in: f64 for f64 parameters, f32 for all others.
pub trait Real: WithDType + Debug + Default {
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

/// A gradient in memory, whose elements can be adjusted while they are read: multiplied by `scale` (the inverse loss scale times the
/// factor that clips the norm), then clamped to ± `bound`.
#[derive(Debug, Clone, Copy)]
pub struct Gradient<'a, C> {
    values: Values<'a, C>,
    /// The layout of values that are not contiguous.
    layout: Option<&'a Layout>,
    /// The first element of contiguous values.
    start: usize,
    scale: f64,
    bound: f64,
}

#[derive(Debug, Clone, Copy)]
enum Values<'a, C> {
    Full(&'a [C]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl<'a, C: Real> Gradient<'a, C> {
    pub fn new(
        storage: &'a CpuStorage,
        layout: &'a Layout,
        scale: f64,
        bound: f64,
    ) -> Result<Self> {
        let start = layout.contiguous_offsets().map(|(start, _)| start);
        Ok(Self {
            values: match (storage, C::DTYPE) {
                (CpuStorage::F16(values), DType::F32) => Values::F16(values),
                (CpuStorage::BF16(values), DType::F32) => Values::Bf16(values),
                (other, _) => Values::Full(C::cpu_storage_as_slice(other)?),
            },
            layout: start.is_none().then_some(layout),
            start: start.unwrap_or_default(),
            scale,
            bound,
        })
    }

    /// Returns the elements from `start` on as a slice if they are contiguous and need no conversion.
    pub fn slice(&self, start: usize) -> Option<&'a [C]> {
        match (self.values, self.layout) {
            (Values::Full(values), None) => Some(after(values, self.start + start)),
            _ => None,
        }
    }

    pub fn adjust(&self) -> impl Fn(C) -> C + Copy + use<C> {
        let [scale, low, high] = [self.scale, -self.bound, self.bound].map(C::from_f64);
        move |value| {
            // `clamp` would panic for bounds that are NaN. A value that is NaN passes.
            match value * scale {
                value if value > high => high,
                value if value < low => low,
                value => value,
            }
        }
    }

    /// Reads elements from `start` on, unadjusted.
    pub fn load(&self, start: usize, into: &mut [C]) {
        let Some(layout) = self.layout else {
            return self.read(self.start + start, into);
        };
        for (into, offset) in into.iter_mut().zip(offsets(layout, start)) {
            self.read(offset, std::slice::from_mut(into));
        }
    }

    /// Reads what lies in memory from an offset on.
    fn read(&self, offset: usize, into: &mut [C]) {
        match self.values {
            Values::Full(values) => copy(values, offset, into),
            Values::F16(values) => load_half(values, offset, into),
            Values::Bf16(values) => load_half(values, offset, into),
        }
    }

    /// Reads elements from `start` on, scaled and clamped.
    pub fn load_adjusted(&self, start: usize, into: &mut [C]) {
        self.load(start, into);
        let adjust = self.adjust();
        into.iter_mut().for_each(|value| *value = adjust(*value));
    }
}

/// Returns the offsets of a strided tensor's elements from element `start` on. candle's own iterator is private. Strided gradients are
/// rare, because `backward` adds each gradient to a contiguous tensor of zeros.
fn offsets(layout: &Layout, start: usize) -> impl Iterator<Item = usize> + '_ {
    let axes = layout.dims().iter().zip(layout.stride()).rev();
    (start..layout.shape().elem_count()).map(move |mut index| {
        axes.clone()
            .fold(layout.start_offset(), |offset, (&size, &stride)| {
                let along = index % size;
                index /= size;
                offset + along * stride
            })
    })
}
