//! What an update reads and writes on the CPU: numbers in the type to compute in, in 16 bits, or in blocks of 8 bits. Rounding at random
//! depends on parameter, step and element alone, so that neither threads nor ranks change a bit. Gradients are read in any layout and type, scaled
//! and clamped on the way, without a copy.

use std::any::Any;
use std::fmt::Debug;

use candle_core::{CpuStorage, DType, Layout, Result, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::mix::{Noise, chance};
use crate::optim::coded::{self, Code, Form, bytes_of, elements_of};

/// Elements that a thread takes at a time, as in candle.
pub const CHUNK: usize = 16 * 1024;
/// Elements that are converted at a time: they fit into the first cache with their gradient and state.
pub const BLOCK: usize = 256;

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

/// Splits off the first `count` elements, or all if there are fewer.
pub fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let count = count.min(slice.len());
    let (head, tail) = std::mem::take(slice).split_at_mut(count);
    *slice = tail;
    head
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
