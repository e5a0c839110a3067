use candle_core::CpuStorage;
use candle_core::backend::BackendStorage;
use half::bf16;

use super::real::{Real, values_mut};
use super::share::take;

/// A tensor of state, in the type to compute in or in bf16. It is empty if the rule keeps no such tensor.
#[derive(Debug)]
pub enum Moment<'a, C> {
    Full(&'a mut [C]),
    Bf16(&'a mut [bf16]),
}

impl<C> Default for Moment<'_, C> {
    fn default() -> Self {
        Self::Full(&mut [])
    }
}

impl<'a, C: Real> Moment<'a, C> {
    /// Returns `None` if the storage has another type.
    pub fn of(storage: &'a mut CpuStorage) -> Option<Self> {
        match storage.dtype() == C::DTYPE {
            true => values_mut(storage).map(Self::Full),
            false => values_mut(storage).map(Self::Bf16),
        }
    }

    /// Returns the values of state that is never kept in bf16.
    pub fn into_full(self) -> &'a mut [C] {
        match self {
            Self::Full(values) => values,
            Self::Bf16(_) => &mut [],
        }
    }

    /// Splits off the first `count` elements, or all if there are fewer.
    pub fn take(&mut self, count: usize) -> Self {
        match self {
            Self::Full(values) => Self::Full(take(values, count)),
            Self::Bf16(values) => Self::Bf16(take(values, count)),
        }
    }

    /// Reads all elements, and returns the part of `into` that holds them.
    pub fn load<'b>(&self, into: &'b mut [C]) -> &'b mut [C] {
        let len = match self {
            Self::Full(values) => {
                C::load(values, into);
                values.len()
            }
            Self::Bf16(values) => {
                for (into, value) in into.iter_mut().zip(&**values) {
                    *into = C::from_f64(value.to_f32().into());
                }
                values.len()
            }
        };
        into.get_mut(..len).unwrap_or_default()
    }

    /// Writes all elements. The first of them belongs to the parameter's element `start`.
    ///
    /// Rounds to bf16 stochastically: a step changes a second moment by a thousandth of itself, less than the resolution of bf16,
    /// so rounding to nearest would never change it. The noise depends on step and element alone.
    pub fn store(&mut self, from: &[C], start: usize, seed: u32) {
        let into = match self {
            Self::Full(into) => return C::store(from, into),
            Self::Bf16(into) => into.iter_mut(),
        };
        for (place, (from, into)) in (start..).zip(from.iter().zip(into)) {
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

/// A hash of 32 bits, with the multipliers and shifts of Wellons' `lowbias32` (2018).
pub fn noise(index: u32, seed: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9e37_79b9) ^ seed;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}
