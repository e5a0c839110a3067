use candle_core::{CpuStorage, Layout};

use super::real::Real;
use super::values::Values;

/// A gradient as it is in memory, and the adjustment of each element as it is read: scaled (by the inverse loss scale and the clipping of
/// the norm), then clamped.
#[derive(Debug, Clone, Copy)]
pub struct Gradient<'a> {
    values: Values<'a>,
    /// `None` if the values are contiguous.
    layout: Option<&'a Layout>,
    scale: f64,
    bound: f64,
}

impl<'a> Gradient<'a> {
    /// `None` for a type that is not floating-point.
    pub fn new(
        storage: &'a CpuStorage,
        layout: &'a Layout,
        scale: f64,
        bound: f64,
    ) -> Option<Self> {
        let values = Values::of(storage)?;
        let (values, layout) = match layout.contiguous_offsets() {
            Some((start, _)) => (values.from(start), None),
            None => (values, Some(layout)),
        };
        Some(Self {
            values,
            layout,
            scale,
            bound,
        })
    }

    /// The elements from `start` on as a slice, if they need no conversion.
    pub fn slice<C: Real>(&self, start: usize) -> Option<&'a [C]> {
        match self.layout {
            None => C::of(self.values.from(start)),
            Some(_) => None,
        }
    }

    pub fn adjust<C: Real>(&self) -> impl Fn(C) -> C + Copy + use<C> {
        let (scale, bound) = (C::from_f64(self.scale), C::from_f64(self.bound));
        move |value| {
            let value = value * scale;
            // `clamp` would panic for bounds that are NaN. A value that is NaN passes.
            if value > bound {
                bound
            } else if value < -bound {
                -bound
            } else {
                value
            }
        }
    }

    /// Reads elements from `start` on, unadjusted.
    pub fn load<C: Real>(&self, start: usize, into: &mut [C]) {
        match self.layout {
            None => C::load(self.values.from(start), into),
            Some(layout) => {
                for (into, offset) in into.iter_mut().zip(offsets(layout, start)) {
                    C::load(self.values.from(offset), std::slice::from_mut(into));
                }
            }
        }
    }

    /// Reads elements from `start` on, scaled and clamped.
    pub fn load_adjusted<C: Real>(&self, start: usize, into: &mut [C]) {
        self.load(start, into);
        let adjust = self.adjust();
        into.iter_mut().for_each(|value| *value = adjust(*value));
    }
}

/// The offsets of a strided tensor's elements, in the order of its indices, from element `start` on. candle's own iterator is private.
/// Its gradients are almost always contiguous, since `backward` adds each to a tensor of zeros.
pub fn offsets(layout: &Layout, start: usize) -> impl Iterator<Item = usize> + '_ {
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
