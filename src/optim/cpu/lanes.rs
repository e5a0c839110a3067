use half::{bf16, f16};

use super::gradient::Gradient;
use super::real::Real;
use super::values::{Values, ValuesMut};
use crate::optim::rule::Elementwise;

/// A stretch of a parameter, with its gradient and state: what one pass reads and writes.
#[derive(Debug)]
pub struct Lanes<'a> {
    /// The stretch's first element in the parameter.
    pub start: usize,
    pub parameter: ValuesMut<'a>,
    /// The master weights; `parameter` is then their rounded copy.
    pub master: Option<ValuesMut<'a>>,
    /// Of the whole parameter.
    pub gradient: Gradient<'a>,
    pub state: [Option<ValuesMut<'a>>; 2],
}

/// Elements that are converted at a time. They fit into the first cache with their gradient and state.
pub const BLOCK: usize = 256;

impl<'a> Lanes<'a> {
    pub fn len(&self) -> usize {
        self.parameter.len()
    }

    /// Splits off the first `count` elements, or all if there are fewer; `None` at the end.
    pub fn take(&mut self, count: usize) -> Option<Self> {
        if self.len() == 0 {
            return None;
        }
        let start = self.start;
        let parameter = self.parameter.take(count);
        self.start += parameter.len();
        let [first, second] = &mut self.state;
        Some(Self {
            start,
            parameter,
            master: self.master.as_mut().map(|values| values.take(count)),
            gradient: self.gradient,
            state: [first, second].map(|state| state.as_mut().map(|values| values.take(count))),
        })
    }

    /// Updates the stretch by an elementwise rule; `seed` is for the stochastic rounding of moments.
    pub fn update<R: Elementwise>(self, step: &R::Step, seed: u32) {
        match self.parameter.is_f64() {
            true => self.update_in::<R, f64>(step, seed),
            false => self.update_in::<R, f32>(step, seed),
        }
    }

    fn update_in<R: Elementwise, C: Real>(mut self, step: &R::Step, seed: u32) {
        let adjust = self.gradient.adjust::<C>();
        let gradient = self.gradient.slice::<C>(self.start);
        if let (Some(gradient), true) = (gradient, self.is_all::<C>()) {
            let [first, second] = self.state.map(own);
            let parameter = C::of_mut(self.parameter).unwrap_or_default();
            return wide(|| R::update(step, adjust, parameter, gradient, [first, second]));
        }
        let (mut parameter, mut gradient) = ([C::default(); BLOCK], [C::default(); BLOCK]);
        let (mut first, mut second) = ([C::default(); BLOCK], [C::default(); BLOCK]);
        while let Some(mut block) = self.take(BLOCK) {
            let len = block.len();
            let parameter = parameter.get_mut(..len).unwrap_or_default();
            let gradient = gradient.get_mut(..len).unwrap_or_default();
            let mut state = [&mut first, &mut second].map(|s| s.get_mut(..len).unwrap_or_default());
            block.load_parameter(0, parameter);
            block.gradient.load(block.start, gradient);
            for (from, into) in block.state.iter().zip(&mut state) {
                match from {
                    Some(from) => C::load(from.as_ref(), into),
                    None => *into = &mut [],
                }
            }
            let slices = state.each_mut().map(|s| &mut **s);
            wide(|| R::update(step, adjust, parameter, gradient, slices));
            for (which, (from, into)) in state.iter().zip(&mut block.state).enumerate() {
                if let Some(into) = into {
                    store_moment(from, into.as_mut(), block.start, noise(seed, which as u32));
                }
            }
            block.store_parameter(parameter);
        }
    }

    /// Reads the parameter in full precision, from this element of the stretch on.
    pub fn load_parameter<C: Real>(&self, start: usize, into: &mut [C]) {
        let stored = self.parameter.as_ref().from(start);
        let Some(master) = &self.master else {
            return C::load(stored, into);
        };
        C::load(master.as_ref().from(start), into);
        match stored {
            Values::F16(stored) => keep_written(stored, into, f16::from_f32),
            Values::BF16(stored) => keep_written(stored, into, bf16::from_f32),
            Values::F32(_) | Values::F64(_) => {}
        }
    }

    pub fn store_parameter<C: Real>(&mut self, from: &[C]) {
        if let Some(master) = &mut self.master {
            C::store(from, master.as_mut());
        }
        C::store(from, self.parameter.as_mut());
    }

    fn is_all<C: Real>(&self) -> bool {
        let is_own = |values: &ValuesMut<'_>| C::of(values.as_ref()).is_some();
        self.master.is_none() && is_own(&self.parameter) && self.state.iter().flatten().all(is_own)
    }
}

/// Compiles the loop in `work` a second time for AVX2, and runs that if the machine has it. FMA stays off, so that the results are
/// bit-identical.
#[inline(always)]
fn wide(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(work: impl FnOnce()) {
            work();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, the only feature that the function enables.
            return unsafe { wide(work) };
        }
    }
    work();
}

/// A master weight is valid as long as it rounds to the stored parameter. Otherwise something else has written to the parameter, and the
/// written value is used.
fn keep_written<C: Real, H: Copy + PartialEq + Into<f64>>(
    stored: &[H],
    masters: &mut [C],
    round: impl Fn(f32) -> H,
) {
    for (master, stored) in masters.iter_mut().zip(stored) {
        if round(master.to_f64() as f32) != *stored {
            *master = C::from_f64((*stored).into());
        }
    }
}

/// The values as a slice; empty if there are none, or if they have another type.
pub fn own<C: Real>(values: Option<ValuesMut<'_>>) -> &mut [C] {
    values.and_then(C::of_mut).unwrap_or_default()
}

/// Rounds bf16 moments stochastically: a step changes a second moment by a thousandth of itself, less than the resolution of bf16, so
/// rounding to nearest would never change it. The noise depends on step and element alone.
fn store_moment<C: Real>(from: &[C], into: ValuesMut<'_>, start: usize, seed: u32) {
    let ValuesMut::BF16(into) = into else {
        return C::store(from, into);
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

/// A hash of 32 bits, with the multipliers and shifts of Wellons' `lowbias32` (2018).
pub fn noise(index: u32, seed: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9e37_79b9) ^ seed;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}
