use candle_core::{CpuStorage, DType, Layout, Result};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::real::{Real, after, copy, load_half, reals, store_half};
use super::share::{BLOCK, take};

/// Numbers that an update reads and writes: a parameter or its state, in the type to compute in or in one of 16 bits.
#[derive(Debug)]
pub enum Column<'a, C> {
    Full(&'a mut [C]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

/// State that the rule does not keep.
impl<C> Default for Column<'_, C> {
    fn default() -> Self {
        Self::Full(&mut [])
    }
}

impl<'a, C: Real> Column<'a, C> {
    /// Returns `None` if the storage has another type. Those of 16 bits are for f32 alone.
    pub fn of(storage: &'a mut CpuStorage) -> Option<Self> {
        match (storage, C::DTYPE) {
            (CpuStorage::F16(values), DType::F32) => Some(Self::F16(values)),
            (CpuStorage::BF16(values), DType::F32) => Some(Self::Bf16(values)),
            (other, _) => reals(other).map(Self::Full),
        }
    }

    /// Returns the values of state that is never kept in 16 bits.
    pub fn into_full(self) -> &'a mut [C] {
        match self {
            Self::Full(values) => values,
            _ => &mut [],
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Full(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Splits off the first `count` elements, or all if there are fewer.
    pub fn take(&mut self, count: usize) -> Self {
        match self {
            Self::Full(values) => Self::Full(take(values, count)),
            Self::F16(values) => Self::F16(take(values, count)),
            Self::Bf16(values) => Self::Bf16(take(values, count)),
        }
    }

    /// Reads elements from `start` on, and returns the part of `into` that holds them.
    pub fn load<'b>(&self, start: usize, into: &'b mut [C]) -> &'b mut [C] {
        let count = self.len().saturating_sub(start).min(into.len());
        match self {
            Self::Full(values) => copy(values, start, into),
            Self::F16(values) => load_half(values, start, into),
            Self::Bf16(values) => load_half(values, start, into),
        }
        into.get_mut(..count).unwrap_or_default()
    }

    /// Replaces up to a block of values, read from `start` on, by the master weights that still round to them.
    pub fn restore(&self, masters: &[C], start: usize, values: &mut [C]) {
        match self {
            Self::Full(_) => {}
            Self::F16(halves) => restore(after(halves, start), after(masters, start), values),
            Self::Bf16(halves) => restore(after(halves, start), after(masters, start), values),
        }
    }

    /// Writes all elements, rounded to nearest.
    pub fn store(&mut self, from: &[C]) {
        match self {
            Self::Full(into) => copy(from, 0, into),
            Self::F16(into) => store_half(from, into),
            Self::Bf16(into) => store_half(from, into),
        }
    }

    /// Writes all elements of a moment. The first of them belongs to the parameter's element `start`.
    ///
    /// Rounds to bf16 stochastically: a step changes a second moment by a thousandth of itself, less than the resolution of bf16,
    /// so rounding to nearest would never change it. The noise depends on step and element alone.
    pub fn store_noisy(&mut self, from: &[C], start: usize, seed: u32) {
        let Self::Bf16(into) = self else {
            return self.store(from);
        };
        for (place, (from, into)) in (start..).zip(from.iter().zip(into.iter_mut())) {
            let value = from.to_f64() as f32;
            *into = match value.is_finite() {
                true => {
                    let chance = noise(place as u32, seed) & 0xffff;
                    bf16::from_bits((value.to_bits().wrapping_add(chance) >> 16) as u16)
                }
                false => bf16::from_f32(value),
            };
        }
    }
}

fn restore<H: Copy + Default + PartialEq, C: Real>(halves: &[H], masters: &[C], values: &mut [C])
where
    [H]: HalfFloatSliceExt,
{
    let mut rounded = [H::default(); BLOCK];
    store_half(masters, &mut rounded);
    let halves = halves.iter().zip(&rounded);
    for ((value, master), (half, rounded)) in values.iter_mut().zip(masters).zip(halves) {
        if half == rounded {
            *value = *master;
        }
    }
}

/// A hash of 32 bits, with the multipliers and shifts of Wellons' `lowbias32` (2018).
pub fn noise(index: u32, seed: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9e37_79b9) ^ seed;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_not_taken_for_f64() {
        let halves = vec![bf16::ONE; 2];
        for mut storage in [CpuStorage::F16(vec![f16::ONE; 2]), CpuStorage::BF16(halves)] {
            let layout = Layout::contiguous(2);
            assert!(Gradient::<f32>::new(&storage, &layout, 1., 1.).is_ok());
            assert!(Gradient::<f64>::new(&storage, &layout, 1., 1.).is_err());
            assert!(Column::<f32>::of(&mut storage).is_some());
            assert!(Column::<f64>::of(&mut storage).is_none());
        }
    }
}
