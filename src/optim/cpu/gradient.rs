use candle_core::{CpuStorage, DType, Layout, Result};
use half::{bf16, f16};

use super::real::{Real, after, copy, load_half};

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
