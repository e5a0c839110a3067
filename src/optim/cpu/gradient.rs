use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout, Result, WithDType};

use super::real::Stored;

/// A gradient in memory, whose elements can be adjusted while they are read: multiplied by `scale` (the inverse loss scale times the
/// factor that clips the norm), then clamped to ± `bound`.
#[derive(Debug, Clone, Copy)]
pub struct Gradient<'a, P: Stored> {
    values: Values<'a, P>,
    /// `None` if the values are contiguous.
    layout: Option<&'a Layout>,
    scale: f64,
    bound: f64,
}

/// Values in the type to compute in, or in the parameter's type.
#[derive(Debug, Clone, Copy)]
enum Values<'a, P: Stored> {
    Reals(&'a [P::Real]),
    Stored(&'a [P]),
}

impl<'a, P: Stored> Gradient<'a, P> {
    pub fn new(
        storage: &'a CpuStorage,
        layout: &'a Layout,
        scale: f64,
        bound: f64,
    ) -> Result<Self> {
        let contiguous = layout.contiguous_offsets();
        let start = contiguous.map_or(0, |(start, _)| start);
        Ok(Self {
            values: match storage.dtype() == P::Real::DTYPE {
                true => Values::Reals(from(storage.as_slice()?, start)),
                false => Values::Stored(from(storage.as_slice()?, start)),
            },
            layout: contiguous.is_none().then_some(layout),
            scale,
            bound,
        })
    }

    /// Returns the elements from `start` on as a slice if they are contiguous and need no conversion.
    pub fn slice(&self, start: usize) -> Option<&'a [P::Real]> {
        match (self.values, self.layout) {
            (Values::Reals(values), None) => Some(from(values, start)),
            _ => None,
        }
    }

    pub fn adjust(&self) -> impl Fn(P::Real) -> P::Real + Copy + use<P> {
        let [scale, low, high] = [self.scale, -self.bound, self.bound].map(P::Real::from_f64);
        move |value| {
            let value = value * scale;
            // `clamp` would panic for bounds that are NaN. A value that is NaN passes.
            if value > high {
                high
            } else if value < low {
                low
            } else {
                value
            }
        }
    }

    /// Reads elements from `start` on, unadjusted.
    pub fn load(&self, start: usize, into: &mut [P::Real]) {
        match self.values {
            Values::Reals(values) => load(values, self.layout, start, into),
            Values::Stored(values) => load(values, self.layout, start, into),
        }
    }

    /// Reads elements from `start` on, scaled and clamped.
    pub fn load_adjusted(&self, start: usize, into: &mut [P::Real]) {
        self.load(start, into);
        let adjust = self.adjust();
        into.iter_mut().for_each(|value| *value = adjust(*value));
    }
}

fn from<T>(values: &[T], start: usize) -> &[T] {
    values.get(start..).unwrap_or_default()
}

fn load<S: Stored>(values: &[S], layout: Option<&Layout>, start: usize, into: &mut [S::Real]) {
    let Some(layout) = layout else {
        return S::load(from(values, start), into);
    };
    for (into, offset) in into.iter_mut().zip(offsets(layout, start)) {
        S::load(from(values, offset), std::slice::from_mut(into));
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
