use candle_core::{CpuStorage, DType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::noise::{Noise, chance};
use super::real::{Real, after, copy, load_half, reals, store_half};
use super::share::{BLOCK, CHUNK, take};
use crate::optim::coded::{self, Code, Form, bytes_of, elements_of};

/// Numbers that an update reads and writes: a parameter or its state, in the type to compute in or in fewer bits.
#[derive(Debug)]
pub enum Column<'a, C> {
    Full(&'a mut [C]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
    /// Blocks of 8 bits, which are taken, read and written as wholes.
    Coded(&'a mut [u8], Code),
}

// A stretch that is taken ends where a block of 8 bits ends.
const _: () = assert!(BLOCK == coded::BLOCK && CHUNK.is_multiple_of(BLOCK));

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

    /// Returns the column of a tensor of state; `None` if it has another form.
    pub fn held(storage: &'a mut CpuStorage, form: Form) -> Option<Self> {
        let Form::Coded(code) = form else {
            return Self::of(storage);
        };
        match storage {
            CpuStorage::U8(bytes) if C::DTYPE == DType::F32 => Some(Self::Coded(bytes, code)),
            _ => None,
        }
    }

    /// Returns the values of state that is never kept in fewer bits.
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
            Self::Coded(bytes, _) => elements_of(bytes.len()),
        }
    }

    /// Splits off the first `count` elements, or all if there are fewer.
    pub fn take(&mut self, count: usize) -> Self {
        match self {
            Self::Full(values) => Self::Full(take(values, count)),
            Self::F16(values) => Self::F16(take(values, count)),
            Self::Bf16(values) => Self::Bf16(take(values, count)),
            Self::Coded(bytes, code) => Self::Coded(take(bytes, bytes_of(count)), *code),
        }
    }

    /// Reads elements from `start` on, and returns the part of `into` that holds them.
    pub fn load<'b>(&self, start: usize, into: &'b mut [C]) -> &'b mut [C] {
        let count = self.len().saturating_sub(start).min(into.len());
        match self {
            Self::Full(values) => copy(values, start, into),
            Self::F16(values) => load_half(values, start, into),
            Self::Bf16(values) => load_half(values, start, into),
            Self::Coded(bytes, code) => code.load(bytes, start, C::f32s_mut(into)),
        }
        into.get_mut(..count).unwrap_or_default()
    }

    /// Replaces up to a block of values, read from `start` on, by the master weights that still round to them.
    pub fn restore(&self, masters: &[C], start: usize, values: &mut [C]) {
        match self {
            Self::Full(_) | Self::Coded(..) => {}
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
            Self::Coded(bytes, code) => code.store(C::f32s(from), bytes),
        }
    }

    /// Writes all elements, rounded stochastically to bf16 and to 8 bits. The first of them belongs to the parameter's element `start`.
    ///
    /// A step changes a second moment by a thousandth of itself, less than the resolution of bf16 or 8 bits, and a first moment by a
    /// tenth, less than that of 8 bits below the highest decade, so rounding to nearest would never change it. The noise depends on
    /// parameter, step and element alone.
    pub fn store_noisy(&mut self, from: &[C], start: usize, seed: u64) {
        let start = start as u64;
        let noise = Noise::new(seed, start);
        match self {
            Self::Bf16(into) => {
                // Elements from a multiple of 2^32 on have other noise. A coded block never crosses one.
                let below = (1 << 32) - (start & u64::from(u32::MAX));
                let below = usize::try_from(below).map_or(from.len(), |n| n.min(from.len()));
                let (head, tail) = from.split_at(below);
                round_at_random(head, into, start, noise);
                let next = start + below as u64;
                let into = into.get_mut(below..).unwrap_or_default();
                round_at_random(tail, into, next, Noise::new(seed, next));
            }
            Self::Coded(bytes, code) => {
                let chance = |i| chance(noise.at((start as u32).wrapping_add(i as u32)));
                code.store_by(C::f32s(from), bytes, chance);
            }
            _ => self.store(from),
        }
    }
}

fn round_at_random<C: Real>(from: &[C], into: &mut [bf16], start: u64, noise: Noise) {
    // The upper halves of the indices are equal, and in the noise already.
    let start = start as u32;
    for (index, (from, into)) in from.iter().zip(into).enumerate() {
        let value = from.to_f64() as f32;
        *into = match value.is_finite() {
            true => {
                let chance = noise.at(start.wrapping_add(index as u32)) & 0xffff;
                bf16::from_bits((value.to_bits().wrapping_add(chance) >> 16) as u16)
            }
            false => bf16::from_f32(value),
        };
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

#[cfg(test)]
mod tests {
    use candle_core::Layout;

    use super::super::gradient::Gradient;
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
