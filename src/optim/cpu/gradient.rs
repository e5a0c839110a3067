use candle_core::{CpuStorage, DType, Layout, Result};

use super::real::{Real, after, copy, load_half};

/// A gradient in memory, whose elements can be adjusted while they are read: multiplied by `scale` (the inverse loss scale times the
/// factor that clips the norm), then clamped to ± `bound`.
#[derive(Debug, Clone, Copy)]
pub struct Gradient<'a, C> {
    storage: &'a CpuStorage,
    /// The values, if they need no conversion.
    reals: Option<&'a [C]>,
    layout: &'a Layout,
    /// The first element if the values are contiguous.
    start: Option<usize>,
    scale: f64,
    bound: f64,
}

impl<'a, C: Real> Gradient<'a, C> {
    pub fn new(
        storage: &'a CpuStorage,
        layout: &'a Layout,
        scale: f64,
        bound: f64,
    ) -> Result<Self> {
        let reals = match storage {
            CpuStorage::F16(_) | CpuStorage::BF16(_) if C::DTYPE == DType::F32 => None,
            other => Some(C::cpu_storage_as_slice(other)?),
        };
        Ok(Self {
            storage,
            reals,
            layout,
            start: layout.contiguous_offsets().map(|(start, _)| start),
            scale,
            bound,
        })
    }

    /// Returns the elements from `start` on as a slice if they are contiguous and need no conversion.
    pub fn slice(&self, start: usize) -> Option<&'a [C]> {
        Some(after(self.reals?, self.start? + start))
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
        if let Some(first) = self.start {
            return self.read(first + start, into);
        }
        for (into, offset) in into.iter_mut().zip(offsets(self.layout, start)) {
            self.read(offset, std::slice::from_mut(into));
        }
    }

    /// Reads what lies in memory from an offset on.
    fn read(&self, offset: usize, into: &mut [C]) {
        match self.storage {
            CpuStorage::F16(values) => load_half(values, offset, into),
            CpuStorage::BF16(values) => load_half(values, offset, into),
            _ => copy(self.reals.unwrap_or_default(), offset, into),
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
