//! What an update reads and writes on the CPU: numbers in the type to compute in, in 16 bits, or in blocks of 8 bits. Rounding at random
//! depends on parameter, step and element alone, so that neither threads nor ranks change a bit.

use candle_core::{CpuStorage, DType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::gradient::{Real, copy, load_half, reals, store_half};
use super::share::{BLOCK, CHUNK, take};
use crate::mix::mix;
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

    /// Reads all elements, and returns the part of `into` that holds them.
    pub fn load<'b>(&self, into: &'b mut [C]) -> &'b mut [C] {
        let count = self.len().min(into.len());
        match self {
            Self::Full(values) => copy(values, 0, into),
            Self::F16(values) => load_half(values, 0, into),
            Self::Bf16(values) => load_half(values, 0, into),
            Self::Coded(bytes, code) => code.load(bytes, C::f32s_mut(into)),
        }
        into.get_mut(..count).unwrap_or_default()
    }

    /// Replaces up to a block of values by the master weights that still round to them.
    pub fn restore(&self, masters: &[C], values: &mut [C]) {
        match self {
            Self::Full(_) | Self::Coded(..) => {}
            Self::F16(halves) => restore(halves, masters, values),
            Self::Bf16(halves) => restore(halves, masters, values),
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

/// The seed of a parameter's noise in its `step`-th update. `stream` is the parameter's own.
#[inline]
pub fn seed(step: u64, stream: u64) -> u64 {
    mix(stream ^ mix(step))
}

/// The seed of one of the tensors that an update writes.
#[inline]
pub fn part(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index))
}

/// Noise as a number from 0 to 1, without 1.
#[inline]
pub fn chance(noise: u32) -> f32 {
    (noise >> 8) as f32 / (1 << 24) as f32
}

/// Noise for 2^32 elements, those whose indices have the same upper half, in operations of 32 bits, which vectorize.
#[derive(Debug, Clone, Copy)]
pub struct Noise(u32, u32);

impl Noise {
    /// For the elements around this index.
    #[inline]
    pub fn new(seed: u64, index: u64) -> Self {
        let upper = ((index >> 32) as u32).wrapping_mul(0x85eb_ca6b);
        Self(seed as u32, ((seed >> 32) as u32).wrapping_add(upper))
    }

    /// A hash of the index, with the multipliers and shifts of Wellons' `lowbias32` (2018).
    #[inline]
    pub fn at(self, index: u32) -> u32 {
        let mut x = index.wrapping_mul(0x9e37_79b9) ^ self.0;
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d) ^ self.1;
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::cpu::Gradient;
    use candle_core::Layout;

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

    /// A tensor of more than 2^32 elements, and more steps than that, repeat nothing.
    #[test]
    fn noise_does_not_repeat_after_32_bits() {
        const TURN: u64 = 1 << 32;
        let noise = |step, stream, index: u64| {
            let seed = part(seed(step, stream), 0);
            Noise::new(seed, index).at(index as u32)
        };
        let differ = |other: &dyn Fn(u64) -> u32| {
            let equal = (0..4096).filter(|index| noise(7, 1, *index) == other(*index));
            equal.count() == 0
        };
        assert!(differ(&|index| noise(7, 1, index + TURN)));
        assert!(differ(&|index| noise(7 + TURN, 1, index)));
        assert!(differ(&|index| noise(7, 1 + TURN, index)));
        assert!(differ(&|index| noise(8, 1, index)));
    }

    /// The upper half is added in the middle of a hash, so that the noise is as even as before.
    #[test]
    fn noise_is_even() {
        for index in [0, (1 << 32) - 500, 5 << 32] {
            let seed = part(seed(3, 9), 1);
            let chances = (index..index + 10_000)
                .map(|index| f64::from(chance(Noise::new(seed, index).at(index as u32))));
            let mean = chances.sum::<f64>() / 10_000.;
            // Five standard deviations of a mean of 10,000 even numbers are 0.0144.
            assert!((mean - 0.5).abs() < 0.0144, "{mean}");
        }
    }
}
